// Draws the server's answers. The script computes no pooling, only the layout of the page.
// An exported page contains its answer and sends no requests.

const $ = (id) => document.getElementById(id);
const embedded = $("answer");
const form = $("controls");
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const ICON = { play: "M8 5v14l11-7z", pause: "M7 5h4v14H7zM13 5h4v14h-4z" };
const AXES = ["size", "kernel", "stride", "dilation", "output_size", "before", "after"];
let answer = null;   // the answer that is drawn
let at = 0;          // the current output
let cells = {};      // the cells of both planes, by position
let timer = 0;
let lastTurn = 0;

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value; else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Requests

const inputs = (name) => [...form.querySelectorAll(`[name="${name}"]`)].slice(-form.elements.dims.value);
const texts = (name) => inputs(name).map((input) => input.value);

function query() {
  const values = new URLSearchParams();
  for (const name of ["dims", "mode", "reduce", "norm_type", "data", "seed", "divisor_override"]) {
    values.set(name, form.elements[name].value);
  }
  for (const name of AXES.slice(0, 5)) {
    values.set(name, texts(name).every((text) => text === "") && name === "stride" ? "" : texts(name).join("x"));
  }
  for (const name of ["ceil_mode", "count_include_pad"]) values.set(name, +form.elements[name].checked);
  const before = texts("before"), after = texts("after"), padding = form.elements.padding.value;
  const sides = before.map((text, i) => (padding === "pairs" ? `${text},${after[i]}` : text)).join("x");
  values.set("padding", ["even", "pairs"].includes(padding) ? sides : padding);
  if (form.elements.data.value === "custom" && answer) values.set("values", customValues());
  return values.toString();
}

function customValues(change = {}) {
  const columns = answer.input.shape.at(-1), rows = [];
  answer.input.exact.forEach((text, i) => {
    if (i % columns === 0) rows.push([]);
    rows.at(-1).push(change[i] ?? text);
  });
  return rows.map((row) => row.join(",")).join(";");
}

async function ask(text) {
  const turn = ++lastTurn;
  document.body.setAttribute("aria-busy", "true");
  let reply;
  try {
    const response = await fetch(`api/pool?${text}`);
    reply = await response.json();
  } catch {
    reply = { error: "The explorer's server does not respond. Is `ndpool explore` still running?" };
  }
  if (turn !== lastTurn) return;
  $("error").hidden = !reply.error;
  $("error").textContent = reply.error ?? "";
  $("planes").classList.toggle("stale", Boolean(reply.error));
  if (!reply.error) show(reply);
  document.body.dataset.turn = turn;
  document.body.removeAttribute("aria-busy");
}

function show(reply) {
  const same = answer && JSON.stringify(answer.axes) === JSON.stringify(reply.axes);
  answer = reply;
  if (form) fill(reply.controls);
  draw();
  look(same ? Math.min(at, reply.output.exact.length - 1) : reply.at, true);
  drawFormula();
  drawCode();
  if (form) {
    updateAddress();
    poolPicture();
  }
  if (reply.play && !reducedMotion.matches && !timer) play();
}

function fill(controls) {
  form.elements.dims.value = controls.dims[0];
  // Keep "before, after" selected while both values are still equal.
  if (controls.padding[0] === "even" && form.elements.padding.value === "pairs") controls.padding = ["pairs"];
  for (const [name, values] of Object.entries(controls)) {
    if (AXES.includes(name)) {
      inputs(name).forEach((input, i) => { if (input !== document.activeElement) input.value = values[i]; });
    } else if (form.elements[name]?.type === "checkbox") {
      form.elements[name].checked = values[0] === "1";
    } else if (form.elements[name] && form.elements[name] !== document.activeElement) {
      form.elements[name].value = values[0];
    }
  }
  if (controls.dims[0] === "2" && AXES.slice(1).some((name) => controls[name][0] !== controls[name][1])) {
    form.elements.link.checked = false;
  }
  showRelevantControls();
}

// Hides controls that do not apply, as given by data-when="mode=sliding reduce=avg,lp".
function showRelevantControls() {
  for (const element of form.querySelectorAll("[data-when]")) {
    element.hidden = !element.dataset.when.split(" ").every((rule) => {
      const [name, values] = rule.split("=");
      return values.split(",").includes(form.elements[name].value);
    });
  }
}

function updateAddress() {
  const state = new URLSearchParams(answer.state);
  state.delete("at");
  if (at) state.set("at", at);
  const text = state.toString().replaceAll("%2C", ",").replaceAll("%3B", ";");
  history.replaceState(null, "", text ? `#${text}` : location.pathname);
  $("save").href = `api/export?${text}`;
}

// Drawing

const padded = { size: 1, out: 1, before: 0, after: 0, taps: [[0]] };
const axesOf = (reply) => (reply.dims === 2 ? reply.axes : [padded, reply.axes[0]]);

function draw() {
  const [rows, columns] = axesOf(answer);
  const span = (axis) => {
    const taps = axis.taps.flat();
    return [Math.min(-axis.before, ...taps), Math.max(axis.size + axis.after, ...taps.map((tap) => tap + 1))];
  };
  const [top, bottom] = span(rows), [left, right] = span(columns);
  cells = { top, left, input: new Map(), output: [] };
  const inside = (axis, i) => (i >= 0 && i < axis.size ? "" : i >= -axis.before && i < axis.size + axis.after ? "pad" : "beyond");
  const hasIndex = Boolean(answer.index);

  plane("input", top, bottom, left, right, (r, c) => {
    const kinds = [inside(rows, r), inside(columns, c)];
    const kind = kinds.includes("beyond") ? "beyond" : kinds.includes("pad") ? "pad" : "";
    const cell = make("div", { role: "gridcell", className: `cell ${kind}` });
    if (kind === "pad") cell.append(answer.fill);
    if (kind) {
      cell.setAttribute("aria-label", kind === "pad" ? `padding ${answer.fill}` : "beyond the padding");
    } else {
      const i = r * columns.size + c;
      value(cell, answer.input, i, answer.shades[i], `x[${place(r, c)}]`);
      if (hasIndex) cell.prepend(make("small", { textContent: i }));
      cell.dataset.i = i;
    }
    cell.tabIndex = cell.dataset.i === "0" ? 0 : -1;
    cells.input.set(`${r},${c}`, cell);
    return cell;
  });
  plane("output", 0, rows.out, 0, columns.out, (r, c) => {
    const o = r * columns.out + c;
    const cell = make("div", { role: "gridcell", className: "cell" });
    value(cell, answer.output, o, answer.outputShades[o], `y[${place(r, c)}]`);
    cell.dataset.o = o;
    cells.output.push(cell);
    return cell;
  });
  const frame = make("div", { className: "frame" });
  $("input").append(frame);
  cells.frame = frame;
  cells.ladder = [];
  if (answer.dims === 1) ladder(columns, left, right, inside);
  const shape = (axes, of) => axes.map((axis) => axis[of]).join(" × ");
  $("input-name").replaceChildren("input ", make("b", { textContent: shape(answer.axes, "size") }));
  $("output-name").replaceChildren("output ", make("b", { textContent: shape(answer.axes, "out") }));
  $("summary").textContent = answer.summary;
  $("key-pick").hidden = !hasIndex;
  $("key-result").hidden = hasIndex;
  $("key-pad").hidden = !$("input").querySelector(".pad");
  $("key-beyond").hidden = !$("input").querySelector(".beyond");
  fit();
}

const place = (r, c) => (answer.dims === 2 ? `${r}, ${c}` : `${c}`);

function value(cell, numbers, i, shade, name) {
  const text = numbers.text[i];
  cell.append(text);
  cell.dataset.value = numbers.exact[i];
  cell.style.setProperty("--v", shade);
  cell.classList.toggle("long", text.length > 4);
  cell.classList.toggle("longer", text.length > 6);
  cell.setAttribute("aria-label", `${name} = ${numbers.full[i]}`);
  cell.title = `${name} = ${numbers.exact[i]}`;
}

function plane(id, top, bottom, left, right, cell) {
  const grid = $(id);
  const label = (i, axis) => (i >= 0 && i < axis ? i : "");
  const [rows, columns] = axesOf(answer).map((axis) => (id === "input" ? axis.size : axis.out));
  grid.replaceChildren(make("div"));
  grid.setAttribute("role", "grid");
  grid.setAttribute("aria-label", id === "input" ? "Input; Enter changes a value" : "Output; arrow keys move the window");
  grid.style.setProperty("--columns", right - left);
  for (let c = left; c < right; c++) grid.append(make("div", { className: "head", ariaHidden: "true", textContent: label(c, columns) }));
  for (let r = top; r < bottom; r++) {
    const row = make("div", { role: "row" });
    row.append(make("div", { className: "head", ariaHidden: "true", textContent: answer.dims === 2 ? label(r, rows) : "" }));
    for (let c = left; c < right; c++) row.append(cell(r, c));
    grid.append(row);
  }
}

// One line per output with its window, because a single row of cells cannot show overlapping windows.
function ladder(axis, left, right, inside) {
  const lines = axis.taps.map((taps, o) => {
    const line = make("div", {}, ...taps.map((tap) => {
      const bar = make("i", { className: inside(axis, tap) ? "out" : "" });
      bar.style.gridColumn = tap - left + 1;
      return bar;
    }));
    line.dataset.o = o;
    return line;
  });
  cells.ladder = lines;
  $("input").append(make("div", { className: "ladder", ariaHidden: "true" }, ...lines));
}

// Chooses the largest cells that fit: planes side by side if readable, otherwise stacked.
function fit() {
  if (!answer) return;
  const planes = $("planes"), width = planes.clientWidth;
  const [input, output] = ["input", "output"].map((id) => +$(id).style.getPropertyValue("--columns"));
  const gutter = 16, size = (columns, available) => Math.floor((available - gutter * 2) / columns) - 3;
  const abreast = size(input + output, width - 130), below = size(Math.max(input, output), width);
  const stacked = answer.dims === 1 ? abreast < 40 : abreast < 30 && below > abreast;
  planes.classList.toggle("stacked", stacked);
  planes.style.setProperty("--gutter", `${gutter}px`);
  for (const [id, columns] of [["input", input], ["output", output]]) {
    const cell = Math.max(14, Math.min(stacked ? size(columns, width) : abreast, 52, stacked && id === "output" ? 42 : 52));
    $(id).style.setProperty("--cell", `${cell}px`);
    $(id).classList.toggle("tiny", cell < 18);
    for (const small of $(id).querySelectorAll("small")) small.hidden = cell < 38;
  }
}

// The current output

function look(o, quiet = false) {
  at = o;
  const [rows, columns] = axesOf(answer);
  const r = Math.floor(o / columns.out), c = o % columns.out;
  const across = columns.taps[c], down = rows.taps[r];
  for (const cell of document.querySelectorAll("#input .tap, #input .pick, #output .result, #output .uses")) {
    cell.classList.remove("tap", "pick", "result", "uses");
  }
  const inside = [];
  for (const y of down) {
    for (const x of across) {
      const cell = cells.input.get(`${y},${x}`);
      cell.classList.add("tap");
      if (cell.dataset.i) inside.push(+cell.dataset.i);
    }
  }
  const picked = answer.index ? answer.index[o] : -1;
  $("input").querySelector(`[data-i="${picked}"]`)?.classList.add("pick");
  cells.output.forEach((cell, i) => {
    cell.classList.toggle("result", i === o);
    cell.tabIndex = i === o ? 0 : -1;
    cell.setAttribute("aria-selected", i === o);
  });
  cells.ladder.forEach((line, i) => line.classList.toggle("on", i === o));
  const place = { x: across[0] - cells.left, y: down[0] - cells.top, w: across.at(-1) - across[0] + 1, h: down.at(-1) - down[0] + 1 };
  for (const [name, number] of Object.entries(place)) cells.frame.style.setProperty(`--${name}`, number);
  drawDetail(o, r, c, down, across, inside, picked);
  if (answer.mode === "adaptive") drawFormula();
  if (form && !quiet && !timer) updateAddress();
}

const reach = (taps) => {
  const first = sign(taps[0]), last = sign(taps.at(-1));
  const step = taps.length > 1 ? taps[1] - taps[0] : 1;
  return first === last ? first : `${first} to ${last}${step > 1 ? ` in steps of ${step}` : ""}`;
};
const sign = (number) => `${number}`.replace("-", "−");
const brackets = (text) => (text.startsWith("−") ? `(${text})` : text);

function drawDetail(o, r, c, down, across, inside, picked) {
  const { reduce, output, input, divisor } = answer;
  const values = inside.map((i) => input.full[i]);
  const name = `y[${place(r, c)}]`, result = output.full[o];
  const all = down.length * across.length;
  const where = answer.dims === 2 ? `rows ${reach(down)}, columns ${reach(across)}` : `positions ${reach(across)}`;
  const count = all === inside.length ? `${all}` : `${inside.length} of ${all} inside the input`;
  const lines = [["Window", where], ["Elements", count], ["Sum", expression(values, o, all, result)]];
  if (picked >= 0) {
    const columns = input.shape.at(-1);
    lines.push(["Index", `${picked}: x[${place(Math.floor(picked / columns), picked % columns)}]`]);
  }
  if (divisor) lines.push(["Divisor", `${sign(divisor[o])}: ${why(divisor[o], all, inside.length)}`]);
  const list = make("dl");
  for (const [term, text] of lines) {
    const label = term === "Sum" ? { max: "Maximum", min: "Minimum", avg: "Average", sum: "Sum", lp: "Norm" }[reduce] : term;
    list.append(make("dt", { textContent: label }), make("dd", { textContent: text, className: term === "Sum" ? "sum" : "" }));
  }
  $("detail").replaceChildren(make("p", { className: "big" }, `${name} = `, make("b", { textContent: result, title: output.exact[o] })), list);
  $("spoken").setAttribute("aria-live", timer ? "off" : "polite");
  $("spoken").textContent = `${name} is ${result}. ${lines.map(([term, text]) => `${term}: ${text}`).join(". ")}.`;
}

function expression(values, o, all, result) {
  const { reduce, norm, divisor } = answer;
  if (reduce === "max" || reduce === "min") return `${reduce}(${values.join(", ")}) = ${result}`;
  if (reduce === "lp" && norm.endsWith("∞")) {
    return `${norm === "∞" ? "max" : "min"}(${values.map((text) => `|${text}|`).join(", ")}) = ${result}`;
  }
  if (reduce === "lp") {
    return `(${values.map((text) => `|${text}|^${norm}`).join(" + ")})^(1/${norm}) = ${result}`;
  }
  const sum = values.map((text, i) => (i ? brackets(text) : text)).join(" + ");
  return reduce === "avg" ? `(${sum}) / ${brackets(sign(divisor[o]))} = ${result}` : `${sum} = ${result}`;
}

function why(divisor, all, inside) {
  if (answer.reduce === "avg" && answer.mode === "sliding" && answer.controls.divisor_override[0]) return "divisor_override";
  if (divisor === all) return all === inside ? "all elements of the window" : "all elements of the window, including padding";
  return divisor === inside ? "the elements inside the input" : "the elements inside the input and its padding";
}

function drawFormula() {
  const parts = answer.formula.map((line, a) => {
    const [rows, columns] = axesOf(answer);
    if (answer.mode === "sliding") {
      const row = make("div", { className: "fill" }, make("em", { textContent: line.axis }), fraction(line.round, line.top, line.bottom), "+ 1 =", make("b", { textContent: line.out }));
      return make("div", {}, row, make("p", { className: "rule", textContent: line.note }));
    }
    const axis = answer.axes[a], o = axis === rows ? Math.floor(at / columns.out) : at % columns.out, taps = axis.taps[o];
    const edge = (kind, i, end) => [fraction(kind, `${i} · ${line.size}`, line.out), "=", make("b", { textContent: end })];
    return make("div", { className: "fill" }, make("em", { textContent: line.axis }), ...edge("floor", o, taps[0]), "to before", ...edge("ceil", o + 1, taps.at(-1) + 1));
  });
  const rule = answer.mode === "sliding"
    ? [fraction(answer.formula[0].round, "size + before + after − dilation · (kernel − 1) − 1", "stride"), "+ 1"]
    : ["window o from", fraction("floor", "o · size", "out"), "to before", fraction("ceil", "(o + 1) · size", "out")];
  $("formula").replaceChildren(make("div", { className: "fill rule" }, ...rule), ...parts);
}

function fraction(kind, top, bottom) {
  return make("span", { className: `frac ${kind}`, role: "img", ariaLabel: `${kind} of (${top}) divided by ${bottom}` },
    make("span", { textContent: top }), make("span", { textContent: bottom }));
}

// Code

const TOKENS = /(#.*$)|("[^"]*"|'[^']*')|\b(import|as|def|return|for|in|True|False|None)\b|(\b\d[\d.]*\b)/gm;
const chosen = () => document.querySelector('[role="tab"][aria-selected="true"]').id.slice(4);

function drawCode() {
  const { code, note } = answer.code[chosen()];
  const target = document.querySelector("#code code");
  target.replaceChildren();
  let end = 0;
  for (const match of code.matchAll(TOKENS)) {
    target.append(code.slice(end, match.index), make("span", { className: "cskn"[match.slice(1).findIndex(Boolean)], textContent: match[0] }));
    end = match.index + match[0].length;
  }
  target.append(code.slice(end));
  target.parentElement.hidden = !code;
  $("copy").hidden = !code;
  $("note").textContent = note;
}

async function copy(text, button) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without clipboard permission, fall back to execCommand.
    const area = make("textarea", { value: text, className: "sr" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = name; }, 1200);
}

// Playback

const step = (by) => look((at + by + answer.output.exact.length) % answer.output.exact.length);

function play() {
  timer = setTimeout(() => { step(1); play(); }, 2200 / $("speed").value);
  playing(true);
}

function pause() {
  const was = timer;
  clearTimeout(timer);
  timer = 0;
  playing(false);
  if (was && form && answer) updateAddress();
}

function playing(on) {
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  $("play").querySelector("path").setAttribute("d", on ? ICON.pause : ICON.play);
}

function arrows(event, cell) {
  const grid = cell.closest(".plane"), rows = [...grid.querySelectorAll('[role="row"]')].map((row) => [...row.querySelectorAll(".cell")]);
  const r = rows.findIndex((row) => row.includes(cell)), c = rows[r].indexOf(cell);
  const moves = { ArrowUp: [r - 1, c], ArrowDown: [r + 1, c], ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1], Home: [r, 0], End: [r, rows[r].length - 1] };
  const next = moves[event.key] && rows[moves[event.key][0]]?.[moves[event.key][1]];
  if (!moves[event.key]) return;
  event.preventDefault();
  if (!next) return;
  next.tabIndex = 0;
  next.focus();
  cell.tabIndex = -1;
}

// Turns a cell into a text field until Enter, Escape or loss of focus.
function edit(cell, first = "") {
  const field = make("input", { value: first || cell.dataset.value, inputMode: "decimal", ariaLabel: `New value of ${cell.getAttribute("aria-label")}` });
  let done = false;
  const end = (keep) => {
    if (done) return;
    done = true;
    const text = field.value.trim(), i = cell.dataset.i;
    field.remove();
    if (!keep || !text || text === cell.dataset.value) return cell.focus();
    const values = new URLSearchParams(query());
    values.set("data", "custom");
    values.set("values", customValues({ [i]: text }));
    ask(values.toString()).then(() => $("input").querySelector(`[data-i="${i}"]`)?.focus());
  };
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter" || event.key === "Escape") end(event.key === "Enter");
  });
  field.addEventListener("blur", () => end(true));
  cell.append(field);
  field.focus();
  if (!first) field.select();
}

// Images

const MAX_PIXELS = 2 ** 24, MAX_BYTES = 2 ** 26;
let picture = null;
let pictures = 0;

function showNote(text, bad = false) {
  $("picture-note").textContent = text;
  $("picture-note").classList.toggle("bad", bad);
}

async function takePicture(file) {
  if (file.size > MAX_BYTES) return showNote(`${file.name} is too large: ${Math.ceil(file.size / 2 ** 20)} MiB; at most 64 MiB.`, true);
  try {
    const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
    usePicture(bitmap, bitmap.width, bitmap.height, file.name);
  } catch {
    showNote(`${file.name} is not an image that this browser can read.`, true);
  }
}

function usePicture(source, width, height, name) {
  if (width * height > MAX_PIXELS) {
    return showNote(`${name} is too large: ${width} × ${height}; at most ${MAX_PIXELS.toLocaleString("en")} pixels.`, true);
  }
  const canvas = $("original");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(source, 0, 0);
  picture = context.getImageData(0, 0, width, height);
  caption(canvas, `original, ${width} × ${height}`);
  return poolPicture();
}

const caption = (canvas, text) => { canvas.closest("figure").querySelector("figcaption").textContent = text; };

async function poolPicture() {
  if (!picture || !answer) return;
  const turn = ++pictures, { width, height } = picture;
  const where = new URLSearchParams({ width, height, state: answer.state });
  try {
    const response = await fetch(`api/image?${where}`, { method: "POST", body: picture.data, headers: { "Content-Type": "application/octet-stream" } });
    if (turn !== pictures) return;
    if (response.headers.get("Content-Type") === "application/json") return showNote((await response.json()).error, true);
    const [rows, columns] = ["X-Height", "X-Width"].map((name) => +response.headers.get(name));
    const pixels = new ImageData(new Uint8ClampedArray(await response.arrayBuffer()), columns, rows);
    const canvas = $("pooled");
    canvas.width = columns;
    canvas.height = rows;
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    caption(canvas, `pooled, ${columns} × ${rows}, in ${response.headers.get("X-Milliseconds")} ms`);
    $("pictures").hidden = $("keep").hidden = false;
    showNote(answer.summary.replace(/: input.*/, ".") + (answer.dims === 1 ? " Each row is pooled separately." : ""));
    document.body.dataset.picture = turn;
  } catch {
    if (turn === pictures) showNote("The explorer's server does not respond.", true);
  }
}

// A scene with edges, gradients and fine detail, so that every reduction has a visible effect.
function sample() {
  const canvas = make("canvas", { width: 480, height: 320 }), pen = canvas.getContext("2d");
  const sky = pen.createLinearGradient(0, 0, 0, 320);
  for (const [stop, colour] of [[0, "#12305e"], [0.55, "#e98a5b"], [0.7, "#f7d9a4"], [1, "#2a4d5e"]]) sky.addColorStop(stop, colour);
  pen.fillStyle = sky;
  pen.fillRect(0, 0, 480, 320);
  pen.fillStyle = "#fff3d0";
  pen.beginPath();
  pen.arc(330, 165, 44, 0, 7);
  pen.fill();
  for (let layer = 0; layer < 4; layer++) {
    pen.fillStyle = ["#8a5a6b", "#5f4560", "#3b3350", "#1d2138"][layer];
    pen.beginPath();
    pen.moveTo(0, 320);
    for (let x = 0; x <= 480; x += 4) {
      const wave = Math.sin(x / (58 - 9 * layer) + layer * 2) * 20 + Math.sin(x / 17 + layer) * 7;
      pen.lineTo(x, 190 + layer * 30 + wave);
    }
    pen.lineTo(480, 320);
    pen.fill();
  }
  pen.fillStyle = "#fff";
  for (let i = 0; i < 90; i++) pen.fillRect((i * 197) % 480, (i * i * 31) % 130, 1 + (i % 2), 1 + (i % 2));
  usePicture(canvas, 480, 320, "The sample");
}

// Event listeners

function listen() {
  $("first").onclick = () => { pause(); look(0); };
  $("previous").onclick = () => { pause(); step(-1); };
  $("next").onclick = () => { pause(); step(1); };
  $("play").onclick = () => (timer ? pause() : play());
  const output = (event) => event.target.closest("[data-o]");
  $("planes").addEventListener("pointerover", (event) => {
    const cell = output(event), source = event.target.closest("[data-i]");
    if (cell && !timer && at !== +cell.dataset.o) look(+cell.dataset.o);
    for (const used of document.querySelectorAll(".uses")) used.classList.remove("uses");
    if (source) markUses(+source.dataset.i);
  });
  $("planes").addEventListener("click", (event) => {
    const cell = output(event);
    if (cell) { pause(); look(+cell.dataset.o); }
  });
  $("planes").addEventListener("focusin", (event) => {
    const cell = output(event);
    if (cell && at !== +cell.dataset.o) { pause(); look(+cell.dataset.o); }
    if (event.target.dataset.i) markUses(+event.target.dataset.i);
  });
  $("planes").addEventListener("keydown", (event) => {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    if (event.key === " " && cell.dataset.o) { event.preventDefault(); $("play").click(); }
    else if (form && cell.dataset.i && (event.key === "Enter" || /^[-\d.]$/.test(event.key))) {
      event.preventDefault();
      edit(cell, event.key === "Enter" ? "" : event.key);
    } else arrows(event, cell);
  });
  if (form) $("planes").addEventListener("dblclick", (event) => {
    const cell = event.target.closest("[data-i]");
    if (cell && !cell.querySelector("input")) edit(cell);
  });
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const open = (tab) => {
    for (const other of tabs) {
      other.setAttribute("aria-selected", other === tab);
      other.tabIndex = other === tab ? 0 : -1;
    }
    $("code").setAttribute("aria-labelledby", tab.id);
    drawCode();
  };
  tabs.forEach((tab, i) => {
    tab.onclick = () => open(tab);
    tab.onkeydown = (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) { const next = tabs.at((i + by) % tabs.length); open(next); next.focus(); }
    };
  });
  document.querySelector(".skip").onclick = (event) => {
    event.preventDefault(); // the fragment of the URL is the state
    $("stage").focus();
  };
  $("copy").onclick = () => copy(answer.code[chosen()].code, $("copy"));
  new ResizeObserver(fit).observe($("planes"));
  theme();
  if (form) listenLive();
}

function markUses(i) {
  const [rows, columns] = axesOf(answer), r = Math.floor(i / columns.size), c = i % columns.size;
  rows.taps.forEach((down, y) => columns.taps.forEach((across, x) => {
    if (down.includes(r) && across.includes(c)) cells.output[y * columns.out + x].classList.add("uses");
  }));
}

function theme() {
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const update = () => $("theme").setAttribute("aria-pressed", dark());
  try { if (localStorage.theme) root.dataset.theme = localStorage.theme; } catch { /* no storage */ }
  $("theme").onclick = () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.theme = root.dataset.theme; } catch { /* no storage */ }
    update();
  };
  system.addEventListener("change", update);
  update();
}

function listenLive() {
  let wait = 0, last = "";
  const changed = (event) => {
    const { name } = event.target, both = [...form.querySelectorAll(`[name="${name}"]`)];
    if (form.elements.link.checked && AXES.slice(1).includes(name)) for (const input of both) input.value = event.target.value;
    if (name === "link") return;
    showRelevantControls();
    pause();
    clearTimeout(wait);
    wait = setTimeout(() => {
      const text = query();
      if (text !== last) ask(last = text);
    }, 30);
  };
  for (const kind of ["input", "change"]) form.addEventListener(kind, changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  $("shuffle").onclick = () => {
    form.elements.seed.value = Math.floor(Math.random() * 1000);
    ask(query());
  };
  const go = () => {
    last = "";
    ask(location.hash.slice(1));
  };
  addEventListener("hashchange", () => {
    pause();
    form.elements.link.checked = true;
    go();
  });
  $("share").onclick = () => copy(location.href, $("share"));
  $("file").onchange = () => { if ($("file").files[0]) takePicture($("file").files[0]); $("file").value = ""; };
  $("sample").onclick = sample;
  $("actual").onchange = () => $("pictures").classList.toggle("actual", $("actual").checked);
  $("keep").onclick = () => $("pooled").toBlob((blob) => {
    const link = make("a", { href: URL.createObjectURL(blob), download: "pooled.png" });
    link.click();
    URL.revokeObjectURL(link.href);
  });
  addEventListener("dragover", (event) => { event.preventDefault(); $("picture").classList.add("drop"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("picture").classList.remove("drop"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("picture").classList.remove("drop");
    if (event.dataTransfer.files[0]) takePicture(event.dataTransfer.files[0]);
  });
  go();
}

listen();
if (embedded) show(JSON.parse(embedded.textContent));
