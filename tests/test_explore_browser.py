"""The explorer in headless Chromium: what the page shows is compared with ndpool's results.

After every test the page must have logged no error and sent no request to another host.
"""

import json
import os
import random
import shutil
from urllib.parse import urlsplit

import numpy as np
import pytest

import ndpool
from explorer import draw, png, query, running, wait_until
from helpers import HANG
from ndpool._explore import export
from ndpool._explore.answer import answer
from ndpool._explore.state import parse

TIMES = " \N{MULTIPLICATION SIGN} "
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEFAULT = {
    "dims": ["2"],
    "mode": ["sliding"],
    "reduce": ["max"],
    "size": ["6", "8"],
    "kernel": ["3", "3"],
    "stride": ["2", "2"],
    "padding": ["even"],
    "before": ["1", "1"],
    "after": ["1", "1"],
    "dilation": ["1", "1"],
    "ceil_mode": ["0"],
    "count_include_pad": ["1"],
    "divisor_override": [""],
    "norm_type": ["2"],
    "output_size": ["3", "3"],
    "data": ["random"],
    "seed": ["7"],
}
# Read what the page shows.
READ = """
const cells = (id) => [...document.querySelectorAll(`#${id} .cell[data-value]`)];
const text = (cell) => [...cell.childNodes].map((node) => (node.nodeType === 3 ? node.data : "")).join("");
const error = document.getElementById("error");
return {
  error: error.hidden ? "" : error.textContent,
  hash: location.hash.slice(1),
  x: cells("input").map((cell) => cell.dataset.value),
  y: cells("output").map((cell) => cell.dataset.value),
  rows: document.querySelectorAll("#output [role=row]").length,
  shown: cells("output").map(text),
  name: document.getElementById("output-name").textContent,
};
"""
# For each of the settings: set the text of several controls at once, as if typed, wait for the answer, read.
TRY = """
const [all, done] = arguments, form = document.getElementById("controls"), found = [];
const read = () => {READ};
const wait = (before) => (+document.body.dataset.turn > before ? next() : setTimeout(wait, 4, before));
const set = (settings) => {
  const before = +document.body.dataset.turn;
  form.elements.link.checked = false;
  for (const [name, texts] of Object.entries(settings)) {
    const fields = [...form.querySelectorAll(`[name="${name}"]`)];
    if (fields[0].type === "radio") fields.find((input) => input.value === texts[0]).checked = true;
    else if (fields[0].type === "checkbox") fields[0].checked = texts[0] === "1";
    else fields.slice(-texts.length).forEach((input, i) => { input.value = texts[i]; });
  }
  form.elements.seed.dispatchEvent(new Event("input", { bubbles: true }));
  wait(before);
};
let at = -1;
const next = () => {
  if (at >= 0) found.push(read());
  at += 1;
  if (at < all.length) set(all[at]); else done(found);
};
next();
""".replace("READ", READ)


class Page:
    """The explorer's page in a browser."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def open(self, fragment="", **media):
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get("about:blank")
        self.driver.get(self.url + (f"#{fragment}" if fragment else ""))
        self.driver.execute_script("try { localStorage.clear() } catch {}")
        self.wait(
            lambda: self.run(
                "return Boolean(document.body.dataset.turn || document.getElementById('answer'))"
            )
        )

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition):
        wait_until(condition)

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def set(self, *settings):
        """Set the controls to each of the settings; what the page shows for each."""
        return self.driver.execute_async_script(TRY, settings)

    def read(self):
        return self.run(READ)

    def turn(self):
        return self.run("return +document.body.dataset.turn")

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def hover(self, selector):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver, duration=10).move_to_element(self.find(selector)).perform()

    def width(self, width):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture(scope="module")
def driver():
    webdriver = pytest.importorskip("selenium.webdriver", reason="Selenium drives the browser")
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    chromedriver = shutil.which("chromedriver")
    if binary is None or chromedriver is None:
        pytest.skip("no Chromium with its driver here (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    # Containers often forbid the sandbox; no other page is loaded.
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-background-networking"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Sanitizers preloaded into Python must not be loaded into the browser.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver, env=env))
    driver.set_script_timeout(HANG)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def server(driver):
    with running() as server:
        yield server


@pytest.fixture
def page(driver, server):
    page = Page(driver, server.url)
    page.width(1280)
    page.open()
    yield page
    assert driver.get_log("browser") == []
    asked = requests(driver)
    assert asked
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(server.url).netloc}


def requests(driver):
    """The URLs requested since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith(("data:", "blob:", "about:"))]


def plain(value):
    if value != value:
        return "NaN"
    text = "∞" if abs(value) == float("inf") else f"{abs(value):.3g}"
    return f"\N{MINUS SIGN}{text}" if value < 0 else text


def check(page, settings):
    """Check that the page shows ndpool's result or error for the settings; return whether it is a result."""
    return compare(page.read(), settings)


def compare(shown, settings):
    """The same for what the page showed."""
    message = ""
    try:
        x, y = pooled(settings)
    except ValueError as error:
        message = str(error)
    assert shown["error"] == message
    if message:
        return False
    assert [float(text) for text in shown["x"]] == x.ravel().tolist()
    assert np.array_equal([float(text) for text in shown["y"]], y.ravel(), equal_nan=True), settings
    assert shown["shown"] == [plain(value) for value in y.ravel()]
    assert shown["rows"] == (y.shape[0] if y.ndim == 2 else 1)
    assert shown["name"] == f"output {TIMES.join(map(str, y.shape))}"
    assert parse(shown["hash"]) == parse(query(settings))
    return True


def pooled(settings):
    """The input and output of the public functions for the settings of the controls."""
    size = tuple(map(int, settings["size"]))
    seed, reduce = int(settings["seed"][0]), settings["reduce"][0]
    x = np.random.default_rng(seed).integers(-9, 10, size).astype(float)
    if settings["data"] == ["ramp"]:
        x = np.arange(float(x.size)).reshape(size)
    norm = float(settings["norm_type"][0])
    if settings["mode"] == ["adaptive"]:
        outs = tuple(map(int, settings["output_size"]))
        return x, ndpool.adaptive_pool(x, outs, reduce=reduce, norm_type=norm)
    before, after = (list(map(int, settings[name])) for name in ("before", "after"))
    kind = settings["padding"][0]
    pads = {"even": before, "pairs": list(zip(before, after, strict=True))}.get(kind, kind)
    own = settings["divisor_override"][0] if reduce == "avg" else ""
    y = ndpool.pool(
        x,
        tuple(map(int, settings["kernel"])),
        reduce=reduce,
        stride=tuple(map(int, settings["stride"])) if any(settings["stride"]) else None,
        padding=pads,
        dilation=tuple(map(int, settings["dilation"])),
        ceil_mode=settings["ceil_mode"] == ["1"],
        count_include_pad=settings["count_include_pad"] == ["1"],
        divisor_override=int(own) if own else None,
        norm_type=norm,
    )
    return x, y


def test_shows_ndpool_s_result_for_random_settings(page):
    generator = random.Random(20)
    answered = tried = 0
    while answered < 220:
        drawn = [draw(generator) for _ in range(40)]
        for shown, settings in zip(page.set(*drawn), drawn, strict=True):
            answered += compare(shown, settings)
            tried += 1
    assert tried - answered > 10  # error messages were compared too


CHANGES = [
    ("reduce", ["min"]),
    ("reduce", ["avg"]),
    ("size", ["7", "8"]),
    ("size", ["7", "9"]),
    ("kernel", ["2", "3"]),
    ("kernel", ["2", "4"]),
    ("stride", ["1", "2"]),
    ("stride", ["1", "3"]),
    ("dilation", ["2", "1"]),
    ("dilation", ["2", "2"]),
    ("before", ["0", "1"]),
    ("before", ["0", "2"]),
    ("padding", ["pairs"]),
    ("after", ["1", "3"]),
    ("ceil_mode", ["1"]),
    ("count_include_pad", ["0"]),
    ("divisor_override", ["5"]),
    ("padding", ["same"]),
    ("padding", ["same_lower"]),
    ("padding", ["valid"]),
    ("reduce", ["lp"]),
    ("norm_type", ["3.5"]),
    ("norm_type", ["inf"]),
    ("reduce", ["sum"]),
    ("data", ["ramp"]),
    ("data", ["random"]),
    ("seed", ["123"]),
    ("mode", ["adaptive"]),
    ("output_size", ["4", "3"]),
    ("output_size", ["4", "5"]),
    ("reduce", ["max"]),
]


def change(page, name, texts):
    """Change a control as a user does and wait for the answer."""
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    before = page.turn()
    fields = [
        field
        for field in page.driver.find_elements("css selector", f'#controls [name="{name}"]')
        if name != "link"
    ]
    if fields[0].get_attribute("type") == "radio":
        page.find(f'#controls [name="{name}"][value="{texts[0]}"] + span').click()
    elif fields[0].get_attribute("type") == "checkbox":
        fields[0].click()
    elif fields[0].tag_name == "select":
        Select(fields[0]).select_by_value(texts[0])
    else:
        for field, text in zip(fields[-len(texts) :], texts, strict=True):
            if field.get_attribute("value") != text:
                field.send_keys(Keys.CONTROL, "a")
                field.send_keys(text)
    page.wait(lambda: page.turn() > before and not page.run("return document.body.hasAttribute('aria-busy')"))


def test_every_control_has_an_effect(page):
    page.find("[name=link]").click()
    settings = dict(DEFAULT)
    check(page, settings)
    changed = {"link"}
    for name, texts in CHANGES:
        change(page, name, texts)
        # Each keystroke sends a request; wait for the last answer.
        page.wait(lambda: parse(page.read()["hash"]) == parse(query(settings | {name: texts})))  # noqa: B023
        settings[name] = texts
        if settings["padding"] == ["even"]:
            settings["after"] = settings["before"]
        assert check(page, settings), name
        changed.add(name)
    change(page, "dims", ["1"])
    settings |= {name: texts[-1:] for name, texts in settings.items()} | {"dims": ["1"]}
    assert check(page, settings)
    controls = page.run(
        "return [...document.getElementById('controls').elements].map((e) => e.name).filter(Boolean)"
    )
    assert set(controls) == changed | {"dims"}


def test_linked_axes_change_together(page):
    change(page, "kernel", ["2"])
    assert check(page, DEFAULT | {"kernel": ["2", "2"]})
    change(page, "size", ["9"])
    assert check(page, DEFAULT | {"kernel": ["2", "2"], "size": ["6", "9"]})
    page.find("#shuffle").click()
    page.wait(lambda: "seed=" in page.read()["hash"])
    assert check(
        page,
        DEFAULT
        | {"kernel": ["2", "2"], "size": ["6", "9"], "seed": [page.find("#seed").get_attribute("value")]},
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": ["-3", "4"]}, "explore: size must be from 1 to 32; got size=-3"),
        ({"size": ["999999", "4"]}, "explore: size must be from 1 to 32; got size=999999"),
        ({"kernel": ["", "3"]}, "explore: kernel must be an integer; got kernel=''"),
        ({"kernel": ["2.5", "3"]}, "explore: kernel must be an integer; got kernel='2.5'"),
        ({"kernel": ["9", "3"]}, "pool: the window must fit into the padded input"),
        ({"stride": ["2", ""]}, "explore: stride must be an integer; got stride=''"),
        ({"before": ["5", "5"]}, "pool: every window must contain an element of the input"),
        (
            {"reduce": ["lp"], "norm_type": ["<b>"]},
            "explore: norm_type must be a number; got norm_type='<b>'",
        ),
        ({"reduce": ["lp"], "norm_type": ["0"]}, "pool: norm_type must be a number other than 0"),
        ({"seed": ["-1"]}, "explore: seed must be from 0 to 4294967295"),
    ],
)
def test_bad_input_gives_a_message(page, change, message):
    page.set(DEFAULT | change)
    assert page.read()["error"].startswith(message)
    assert page.find("#error").is_displayed()
    assert page.find("#error").aria_role == "alert"
    page.set(DEFAULT)
    assert check(page, DEFAULT)


# The current output


def selected(page):
    """The current output, the highlighted cells of the input and the position of the frame."""
    return page.run("""
      const places = (selector) => [...document.querySelectorAll(selector)].map((cell) => +cell.dataset.i);
      const box = (e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
      const taps = [...document.querySelectorAll("#input .tap")].map(box);
      const side = (i) => taps.map((b) => b[i]);
      return {
        o: +document.querySelector("#output .result").dataset.o,
        taps: places("#input .tap").filter((i) => !Number.isNaN(i)),
        pads: document.querySelectorAll("#input .tap.pad").length,
        pick: places("#input .pick"),
        cover: [Math.min(...side(0)), Math.min(...side(1)), Math.max(...side(2)), Math.max(...side(3))],
        frame: box(document.querySelector(".frame")),
        detail: document.getElementById("detail").textContent,
        spoken: document.getElementById("spoken").textContent,
      };
    """)


def windows_of(state):
    """The flat input indices in each output's window."""
    size = state.size if state.dims == 2 else (1, *state.size)
    if state.mode == "adaptive":
        axes = [ndpool.adaptive_windows(s, o) for s, o in zip(state.size, state.output_size, strict=True)]
    else:
        pads = [state.padding] * state.dims if isinstance(state.padding, str) else state.padding
        each = (state.size, state.kernel, state.stride, pads, state.dilation)
        axes = [ndpool.windows(*axis, state.ceil_mode) for axis in zip(*each, strict=True)]
    rows, columns = axes if state.dims == 2 else ([range(1)], axes[0])
    return [[r * size[1] + c for r in down for c in across] for down in rows for across in columns]


@pytest.mark.parametrize(
    "fragment",
    [
        "",
        "size=7x9&kernel=2x3&stride=2x1&dilation=2&ceil_mode=1&padding=1,0x0,1",
        "mode=adaptive&size=7x5&output_size=3x4&reduce=avg",
        "dims=1&size=9&kernel=3&stride=2&padding=1&reduce=min",
    ],
)
def test_every_output_shows_its_window(page, fragment):
    page.open(fragment, prefers_reduced_motion="reduce")
    state = parse(fragment)
    expected_answer = answer(state)
    for o, window in enumerate(windows_of(state)):
        seen = selected(page)
        assert (seen["o"], seen["taps"]) == (o, window)
        assert seen["pick"] == ([] if expected_answer["index"] is None else [expected_answer["index"][o]])
        # The frame surrounds the cells of the window.
        assert np.allclose(np.subtract(seen["frame"], seen["cover"]), [-3, -3, 3, 3], atol=0.6)
        assert f"= {expected_answer['output']['full'][o]}" in seen["detail"]
        if expected_answer["divisor"]:
            assert f"Divisor{expected_answer['divisor'][o]}: " in seen["detail"]
        if expected_answer["index"]:
            assert f"Index{expected_answer['index'][o]}: x[" in seen["detail"]
        assert seen["spoken"].startswith("y[")
        page.run("document.getElementById('next').click()")
    assert selected(page)["o"] == 0  # wraps around
    page.run("document.getElementById('previous').click()")
    assert selected(page)["o"] == len(windows_of(state)) - 1
    page.run("document.getElementById('first').click()")
    assert selected(page)["o"] == 0


def test_pointer_and_keyboard_move_the_window(page):
    from selenium.webdriver.common.keys import Keys

    page.open("", prefers_reduced_motion="reduce")
    page.hover('#output [data-o="6"]')
    assert selected(page)["o"] == 6
    assert page.read()["hash"] == "at=6"
    page.hover('#input [data-i="9"]')  # highlights the outputs whose windows contain it
    used = page.run("return [...document.querySelectorAll('#output .uses')].map((cell) => +cell.dataset.o)")
    assert used == [o for o, window in enumerate(windows_of(parse(""))) if 9 in window]
    page.run("document.querySelector('#output [tabindex=\"0\"]').focus()")
    for key, expected in [
        (Keys.ARROW_RIGHT, 7),
        (Keys.ARROW_RIGHT, 7),  # the edge
        (Keys.ARROW_DOWN, 11),
        (Keys.HOME, 8),
        (Keys.ARROW_UP, 4),
        (Keys.END, 7),
        (Keys.ARROW_LEFT, 6),
    ]:
        page.press(key)
        assert selected(page)["o"] == expected
        assert page.run("return +document.activeElement.dataset.o") == expected
        assert page.run("return document.querySelectorAll('#output [tabindex=\"0\"]').length") == 1


def test_tab_reaches_everything_and_everything_has_a_name(page):
    from selenium.webdriver.common.keys import Keys

    focused = "const e = document.activeElement; return e.id || e.name || e.dataset.o || e.dataset.i"
    reached = []
    for _ in range(60):
        page.press(Keys.TAB)
        reached.append(page.run(focused))
    wanted = [
        "share",
        "save",
        "theme",
        "dims",
        "reduce",
        "kernel",
        "padding",
        "ceil_mode",
        "first",
        "play",
        "speed",
        "0",
        "tab-ndpool",
        "copy",
        "code",
        "file",
    ]
    page.open("seed=8")
    page.press(Keys.TAB, Keys.ENTER)  # skips the controls
    assert page.run("return [document.activeElement.id, location.hash]") == ["stage", "#seed=8"]
    page.press(Keys.TAB)
    assert page.run(focused) == "first"
    places = [reached.index(name) for name in wanted]
    assert places == sorted(places)
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    for node in nodes:
        properties = {p["name"]: p["value"].get("value") for p in node.get("properties", [])}
        if properties.get("focusable") and node["role"]["value"] not in ("RootWebArea", "generic"):
            assert node["name"]["value"].strip(), node
    roles = [node["role"]["value"] for node in nodes if not node["ignored"]]
    assert roles.count("grid") == 2
    assert roles.count("row") == 8 + 3
    assert roles.count("gridcell") == 8 * 10 + 3 * 4


def test_a_value_can_be_changed_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    page.run("document.querySelector('#input [data-i=\"0\"]').setAttribute('tabindex', 0)")
    page.run("document.querySelector('#input [data-i=\"0\"]').focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ENTER)
    page.press("nan", Keys.ENTER)
    page.wait(lambda: "custom" in page.read()["hash"])
    shown, x = page.read(), np.random.default_rng(7).integers(-9, 10, (6, 8)).astype(float)
    x[0, 1] = np.nan
    assert np.array_equal([float(v) for v in shown["x"]], x.ravel(), equal_nan=True)
    expected = ndpool.pool(x, (3, 3), stride=2, padding=1)
    assert np.array_equal([float(v) for v in shown["y"]], expected.ravel(), equal_nan=True)
    page.wait(lambda: page.run("return document.activeElement.dataset.i") == "1")
    page.press("-5", Keys.ESCAPE)  # cancels the edit
    assert page.read()["x"][1] == "nan"
    page.press("q", Keys.ENTER, "w", Keys.ENTER)
    page.wait(lambda: page.read()["error"].startswith("explore: values must be a number"))


def test_plays_and_stops(page):
    page.open()
    page.find("#speed").send_keys("\ue010")  # End: the fastest
    assert page.find("#play").get_attribute("aria-label") == "Play"
    page.find("#play").click()
    assert page.find("#play").get_attribute("aria-label") == "Pause"
    page.wait(lambda: selected(page)["o"] >= 2)
    assert page.run("return document.getElementById('spoken').getAttribute('aria-live')") == "off"
    page.find("#play").click()
    at = selected(page)["o"]
    assert page.find("#play").get_attribute("aria-label") == "Play"
    assert page.read()["hash"] == f"at={at}"
    page.run("return new Promise((done) => setTimeout(done, 400))")
    assert selected(page)["o"] == at


def test_reduced_motion_is_respected(page):
    page.open("play=1")
    page.wait(lambda: selected(page)["o"] >= 1)
    assert page.run("return getComputedStyle(document.querySelector('.frame')).transitionDuration") != "0s"
    page.open("play=1", prefers_reduced_motion="reduce")
    assert page.run("return getComputedStyle(document.querySelector('.frame')).transitionDuration") == "0s"
    assert page.find("#play").get_attribute("aria-label") == "Play"


def test_url_contains_the_whole_state(page):
    generator = random.Random(5)
    for _ in range(10):
        settings = draw(generator)
        page.set(settings)
        if page.read()["error"]:
            continue
        page.run("document.getElementById('previous').click()")
        shown, at, address = page.read(), selected(page)["o"], page.driver.current_url
        page.driver.get("about:blank")
        page.driver.get(address)
        page.wait(lambda: page.run("return Boolean(document.body.dataset.turn)"))
        assert (page.read(), selected(page)["o"]) == (shown, at)
        names = ["dims", "mode", "reduce", "padding", "seed"]
        controls = page.run(
            """
          const form = document.getElementById("controls"), value = (name) => form.elements[name].value;
          return arguments[0].map(value).concat(form.elements.ceil_mode.checked);
        """,
            names,
        )
        even = settings["padding"] == ["pairs"] and settings["before"] == settings["after"]
        expected = settings | ({"padding": ["even"]} if even else {})
        assert controls == [*(expected[name][0] for name in names), settings["ceil_mode"] == ["1"]]
    page.open("size=bogus")
    assert page.read()["error"] == "explore: size must be an integer; got size='bogus'"


def test_example_links_work(page):
    links = page.run("return [...document.querySelectorAll('nav a')].map((link) => link.hash.slice(1))")
    assert len(links) >= 8
    for i, link in enumerate(links):
        before = page.turn()
        page.run("document.querySelectorAll('nav a')[arguments[0]].click()", i)
        page.wait(lambda: page.turn() > before)  # noqa: B023
        assert page.read()["error"] == ""
        assert parse(page.read()["hash"]) == parse(link)


def test_code_is_shown_and_copied(page):
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    page.set(DEFAULT | {"reduce": ["min"], "before": ["2", "1"]})
    expected_answer = answer(parse("reduce=min&padding=2x1"))["code"]
    for tab, library in (("tab-torch", "torch"), ("tab-numpy", "numpy"), ("tab-ndpool", "ndpool")):
        page.find(f"#{tab}").click()
        assert page.text("#code code") == expected_answer[library]["code"]
        assert page.text("#note") == expected_answer[library]["note"]
        page.find("#copy").click()
        page.wait(lambda: page.text("#copy") == "Copied")
        assert page.run("return navigator.clipboard.readText()") == expected_answer[library]["code"]
        page.wait(lambda: page.text("#copy") == "Copy")
    page.find("#share").click()
    page.wait(lambda: page.text("#share") == "Copied")
    assert page.run("return navigator.clipboard.readText()") == page.driver.current_url
    page.set(DEFAULT | {"reduce": ["avg"], "dilation": ["2", "1"]})
    page.find("#tab-torch").click()
    assert page.text("#note").startswith("PyTorch cannot: ")
    assert not page.find("#copy").is_displayed()


# Images


def pixels_of(page):
    """The pixels of the pooled image on the canvas."""
    width, height, data = page.run("""
      const canvas = document.getElementById("pooled"), { width, height } = canvas;
      const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
      context.drawImage(canvas, 0, 0);
      return [width, height, [...context.getImageData(0, 0, width, height).data]];
    """)
    return np.array(data, np.uint8).reshape(height, width, 4)


def pictures(page):
    return page.run("return +(document.body.dataset.picture ?? 0)")


def upload(page, path):
    before = pictures(page)
    page.find("#file").send_keys(str(path))
    page.wait(lambda: pictures(page) > before)


def test_image_is_pooled_at_full_size(page, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (61, 83, 4), np.uint8)
    pixels[..., 3] = 255
    (tmp_path / "noise.png").write_bytes(png(pixels))
    upload(page, tmp_path / "noise.png")
    expected = ndpool.pool(pixels, (3, 3), axes=(0, 1), stride=2, padding=1)
    assert (pixels_of(page) == expected).all()
    assert f"original, 83{TIMES}61" in page.text("#pictures")
    assert f"pooled, 42{TIMES}31" in page.text("#pictures")
    before = pictures(page)
    page.set(DEFAULT | {"reduce": ["avg"], "kernel": ["4", "2"], "stride": ["", ""], "before": ["0", "0"]})
    page.wait(lambda: pictures(page) > before)
    expected = np.array(ndpool.pool(pixels, (4, 2), axes=(0, 1), reduce="avg"))
    expected[..., 3] = 255
    assert (pixels_of(page) == expected).all()
    page.find("#sample").click()
    page.wait(lambda: f"480{TIMES}320" in page.text("#pictures"))


DROP = """
const [name, type, size] = arguments, transfer = new DataTransfer();
transfer.items.add(new File([new Uint8Array(size)], name, { type }));
dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
"""


def test_bad_images_give_a_message(page, tmp_path):
    (tmp_path / "notes.png").write_text("not a picture")
    page.find("#file").send_keys(str(tmp_path / "notes.png"))
    page.wait(lambda: page.text("#picture-note") == "notes.png is not an image that this browser can read.")
    page.run(DROP, "notes.txt", "text/plain", 10)
    page.wait(lambda: page.text("#picture-note") == "notes.txt is not an image that this browser can read.")
    page.run(DROP, "long.png", "image/png", 2**26 + 1)
    page.wait(lambda: page.text("#picture-note") == "long.png is too large: 65 MiB; at most 64 MiB.")
    (tmp_path / "wide.png").write_bytes(png(np.zeros((4100, 4100, 4), np.uint8)))
    page.find("#file").send_keys(str(tmp_path / "wide.png"))
    page.wait(
        lambda: page.text("#picture-note").startswith(
            f"wide.png is too large: 4100{TIMES}4100; at most 16,777,216"
        )
    )
    assert not page.find("#pictures").is_displayed()
    # An image smaller than the window: ndpool's message.
    (tmp_path / "dot.png").write_bytes(png(np.zeros((1, 1, 4), np.uint8)))
    page.set(DEFAULT | {"before": ["0", "0"]})
    page.find("#file").send_keys(str(tmp_path / "dot.png"))
    page.wait(lambda: page.text("#picture-note").startswith("pool: the window must fit"))


# Appearance


def test_light_and_dark(page):
    background, shown = "return getComputedStyle(document.body).backgroundColor", {}
    for scheme in ("light", "dark"):
        page.open("", prefers_color_scheme=scheme)
        shown[scheme] = page.run(background)
    assert shown["light"] != shown["dark"]
    for system, other in (("dark", "light"), ("light", "dark")):
        page.open("", prefers_color_scheme=system)
        page.driver.refresh()
        for expected in (other, system, other):
            page.find("#theme").click()
            assert page.run(background) == shown[expected]
            assert page.find("#theme").get_attribute("aria-pressed") == str(expected == "dark").lower()
        page.driver.refresh()  # the choice is stored
        page.wait(lambda: page.run(background) == shown[other])  # noqa: B023


@pytest.mark.parametrize(
    "fragment", ["", "size=32&kernel=5&padding=2", "dims=1&size=32&padding=4&kernel=9&stride=1"]
)
def test_fits_a_phone(page, fragment):
    page.width(390)
    page.open(fragment)
    assert page.run("return document.documentElement.scrollWidth") <= 390
    outside = page.run("""
      const seen = document.querySelectorAll("button, input:not(.sr), select, .card");
      const box = (e) => e.getBoundingClientRect();
      const out = (e) => e.offsetParent && (box(e).left < 0 || box(e).right > 390);
      return [...seen].filter(out).map((e) => e.outerHTML);
    """)
    assert outside == []
    page.width(1280)


# The exported page


@pytest.mark.parametrize("fragment", ["reduce=avg&size=5x6&padding=same&at=4", "dims=1&mode=adaptive&size=7"])
def test_exported_page_needs_no_server(driver, tmp_path, fragment):
    driver.get_log("performance")
    path = export(tmp_path / "windows.html", fragment)
    page = Page(driver, path.as_uri())
    page.width(1280)
    page.open("", prefers_reduced_motion="reduce")
    expected_answer = answer(parse(fragment))
    assert page.read()["y"] == expected_answer["output"]["exact"]
    assert selected(page)["o"] == expected_answer["at"]
    page.hover('#output [data-o="1"]')
    assert (selected(page)["o"], selected(page)["taps"]) == (1, windows_of(parse(fragment))[1])
    page.find("#next").click()
    assert selected(page)["o"] == 2
    page.find("#play").click()
    page.wait(lambda: selected(page)["o"] == 3)
    page.find("#tab-numpy").click()
    assert page.text("#code code") == expected_answer["code"]["numpy"]["code"]
    page.find("#theme").click()
    assert driver.get_log("browser") == []
    assert set(requests(driver)) == {path.as_uri()}
