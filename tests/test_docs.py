"""The documentation: every code block of README and docs runs, every notebook runs, the site builds.

The blocks of a page share a namespace, in order. A block that imports a framework which is not installed is
left out, and the page is reported as skipped with the reason once all its other blocks have passed.
"""

import ast
import doctest
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

import ndpool
from helpers import HANG
from ndpool import _cli
from ndpool._explore.page import page as explorer_page

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FENCE = re.compile(r"^( *)(`{3,}) *([^\s`]*)[^\n`]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^(?:>>> |\.\.\. )? *(?:import|from) +([\w.]+)", re.MULTILINE)
OPTIONAL = {"torch", "jax", "tensorflow", "keras", "scipy", "skimage", "cv2", "matplotlib", "xarray", "PIL"}
OPTIONAL |= {"dask", "distributed", "zarr"}
OPTIONAL |= {"array_api_strict", "cupy"}
NEEDS = {"ndpool.torch": "torch", "ndpool.plot": "matplotlib"}
NOT_CODE = {"text", "sh", "html", "json"}  # blocks that are shown only
NOT_RUN = ("pip", "make", "git", "cd", "python")  # commands that change the reader's machine


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    code: str


def blocks(text):
    found = list(FENCE.finditer(text))
    lines = [text.count("\n", 0, fence.start()) + 1 for fence in found]
    return [Block(line, fence[3], dedent(fence[4])) for line, fence in zip(lines, found, strict=True)]


def missing(code):
    """The optional frameworks that a block imports and that are not installed."""
    names = {NEEDS.get(name, name.partition(".")[0]) for name in IMPORT.findall(code)}
    return sorted(name for name in names & OPTIONAL if importlib.util.find_spec(name) is None)


def run_python(block, path, scope):
    """Run a block: prompts and results by doctest, plain code as it stands."""
    name = f"{path.name}, line {block.line}"
    if ">>>" not in block.code:
        exec(compile("\n" * block.line + block.code, path, "exec"), scope)
        return
    test = doctest.DocTestParser().get_doctest(block.code, scope, name, str(path), block.line)
    told = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=told.append, clear_globs=False)
    scope.update(test.globs)  # doctest works on a copy
    assert not runner.failures, "".join(told)


def run_console(block):
    """Run the commands of a session that are ndpool's, and compare what they print where that is shown."""
    for session in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        command, _, expected = session.partition("\n")
        words = shlex.split(command, comments=True)
        env = {}
        while "=" in words[0]:
            name, _, env[name] = words.pop(0).partition("=")
        if words[0] in NOT_RUN:
            continue
        assert words[0] == "ndpool", f"a command that is not known: {command}"
        # What takes minutes or waits for a reader is only checked for arguments that do not exist.
        quick = {"bench": "--list", "explore": "--export"}.get(words[1], words[1])
        if quick not in words:
            _cli._parser().parse_args(words[1:])
            continue
        told = subprocess.run(
            [sys.executable, "-m", "ndpool", *words[1:]], capture_output=True, text=True, env=os.environ | env
        )
        assert told.returncode == 0, told.stderr
        if expected.strip():
            same = doctest.OutputChecker().check_output(expected, told.stdout, doctest.ELLIPSIS)
            assert same, f"{command}\n{told.stdout}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_of_a_page_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = path.read_text(encoding="utf-8")
    scope, left_out, threads = {"__name__": "__main__"}, {}, ndpool.get_num_threads()
    prompts = 0
    for block in blocks(text):
        if block.language in ("python", "pycon"):
            prompts += len(re.findall(r"^>>> ", block.code, re.MULTILINE))
            if lacking := missing(block.code):
                left_out[block.line] = ", ".join(lacking)
            else:
                run_python(block, path, scope)
        elif block.language == "console":
            run_console(block)
        else:
            assert block.language in NOT_CODE, f"line {block.line}: blocks of {block.language!r} are not run"
    ndpool.set_num_threads(threads)
    # A block in another form (indented, or in a language that is misspelt) would not have run.
    assert prompts == len(re.findall(r"^ *>>> ", text, re.MULTILINE)), "an example outside of a python block"
    if left_out:
        pytest.skip(f"not installed: {'; '.join(f'{what} (line {line})' for line, what in left_out.items())}")


def test_a_wrong_result_fails():
    for code in (">>> 1 + 1\n3\n", "assert 1 + 1 == 3\n", ">>> undefined\n"):
        with pytest.raises((AssertionError, NameError)):
            run_python(Block(1, "python", code), Path("page.md"), {})
    with pytest.raises(AssertionError):
        run_console(Block(1, "console", "$ ndpool --version\nndpool 99\n"))
    with pytest.raises(AssertionError):
        run_console(Block(1, "console", "$ rm -r /\n"))
    with pytest.raises(SystemExit):
        run_console(Block(1, "console", "$ ndpool bench --unknown\n"))


def test_blocks_are_found_wherever_they_stand():
    page = "text\n```python\n>>> 1\n1\n```\n\n=== tab\n\n    ```python a\n    x = 2\n    ```\n\n```\ny\n```"
    first, second = Block(2, "python", ">>> 1\n1\n"), Block(9, "python", "x = 2\n")
    assert blocks(page) == [first, second, Block(13, "", "y\n")]
    assert missing(">>> import numpy, ndpool\n>>> from ndpool import nn\n") == []


def test_reference_has_every_public_name():
    told = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    assert {f"ndpool.{name}" for name in ndpool.__all__} <= set(
        re.findall(r"^::: ([\w.]+)$", told, re.MULTILINE)
    )


class Documented(NamedTuple):
    """An entry of a docstring's section "Parameters": a name, a type and, after it, the default."""

    name: str
    default: object


def documented(function):
    """The parameters of a docstring in order; every entry describes one of them."""
    section = re.search(
        r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n---+$|\Z)",
        inspect.getdoc(function) or "",
        re.MULTILINE | re.DOTALL,
    )
    found = []
    for line in section[1].splitlines() if section else ():
        if line and not line[0].isspace():
            entry = re.fullmatch(r"(\*{0,2}\w+) : (.+?)(?:, default (.+))?", line)
            assert entry is not None, f"{function.__name__}: not 'name : type, default value': {line}"
            default = inspect.Parameter.empty if entry[3] is None else ast.literal_eval(entry[3])
            found.append(Documented(entry[1], default))
    return found


def taken(function):
    """The parameters that a function takes, as a docstring should list them."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        Documented(stars.get(parameter.kind, "") + parameter.name, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def check_parameters(function):
    found, expected = documented(function), taken(function)
    assert found == expected, function.__name__
    # 1, 1.0 and True are equal, but a reader would take one for another.
    assert [type(entry.default) for entry in found] == [type(entry.default) for entry in expected]


@pytest.mark.parametrize("name", [name for name in ndpool.__all__ if callable(getattr(ndpool, name))])
def test_docstring_has_the_parameters_and_defaults_of_its_function(name):
    check_parameters(getattr(ndpool, name))


@pytest.mark.parametrize("name", ndpool.files.__all__)
def test_docstring_has_the_parameters_and_defaults_of_its_file_function(name):
    check_parameters(getattr(ndpool.files, name))


@pytest.mark.parametrize("name", ndpool.nn.__all__)
def test_docstring_has_the_parameters_and_defaults_of_its_layer(name):
    check_parameters(getattr(ndpool.nn, name))


def test_modules_have_the_parameters_of_the_layers_that_they_name():
    """A module of `ndpool.torch` lists no parameters: it names the layer of `ndpool.nn` that has the same."""
    modules = pytest.importorskip("ndpool.torch", reason="the modules need PyTorch")
    for name in ndpool.nn.__all__:
        module = getattr(modules, name)
        assert f"Parameters as in `ndpool.nn.{name}`." in inspect.getdoc(module)
        assert taken(module) == documented(getattr(ndpool.nn, name)), name
    for name in ("accelerate", "restore", "patch", "unpatch", "warmup"):
        check_parameters(getattr(modules, name))


@pytest.mark.parametrize(
    "entries",
    [
        "x : array",
        "x : array\nsize : int, default 2",
        "x : array\nsize : int, default True",
        "x : array\nsize : int, optional",
        "x : array, default None\nsize : int, default 1",
        "size : int, default 1\nx : array",
        "x, size : int, default 1",
        "x : array\nsize",
    ],
)
def test_a_wrong_parameter_is_found(entries):
    def function(x, size=1):
        pass

    head = "Summary.\n\nParameters\n----------\n"
    function.__doc__ = f"{head}x : array\nsize : int, default 1\n    Size.\n\nReturns\n-------\nint\n"
    check_parameters(function)
    function.__doc__ = head + entries
    with pytest.raises(AssertionError):
        check_parameters(function)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_that_a_page_tells_exist(path):
    names = set(re.findall(r"(?<![\w/.'-])ndpool((?:\.[A-Za-z_]\w*)+)", path.read_text(encoding="utf-8")))
    for name in sorted(names):
        if not missing("import ndpool." + name.split(".")[1]):
            assert attrgetter(name[1:])(ndpool) is not None


# Cells run in order in one namespace, as in Jupyter; what a cell shows at its end is asked for its picture.
CELLS = """
import ast, json, sys
scope = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8"))["cells"]):
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]), f"cell {number}")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {number}", "exec"), scope)
    if last is not None:
        shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), scope)
        getattr(shown, "_repr_png_", lambda: None)()
        repr(shown)
"""


def run_notebook(path, directory):
    command = [sys.executable, "-W", "error", "-c", CELLS, str(path)]
    env = os.environ | {"MPLBACKEND": "agg"}
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, env=env)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path, tmp_path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "committed with outputs"
    if lacking := missing("\n".join("".join(cell["source"]) for cell in cells)):
        pytest.skip(f"not installed: {', '.join(lacking)}")
    result = run_notebook(path, tmp_path)
    assert result.returncode == 0, result.stderr


def test_a_failing_cell_fails(tmp_path):
    path = tmp_path / "bad.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["assert 1 + 1 == 3"]}]}))
    assert run_notebook(path, tmp_path).returncode == 1


def test_there_are_three_notebooks():
    assert len(NOTEBOOKS) == 3


@pytest.fixture(scope="module")
def hooks():
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_site_builds_strictly_and_stands_alone(hooks, tmp_path):
    """A warning, a broken link or a reference to another host would fail the build; search works offline."""
    # Quietly it would count no warning.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    index = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in PAGES[1:]}
    assert pages <= found | {"index.html"}
    assert list((tmp_path / "assets" / "plots").glob("*-dark.svg"))
    frame = hooks.STATE.search((ROOT / "docs" / "explorer.md").read_text(encoding="utf-8"))
    assert (tmp_path / frame["path"]).read_text(encoding="utf-8") == explorer_page(frame["state"])
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None or not shutil.which("chromedriver") or not importlib.util.find_spec("selenium"):
        pytest.skip("the site was built, but not searched: no Chromium with its driver, or no Selenium")
    titles, logged, hosts = search_in(browser, (tmp_path / "functions" / "max.html").as_uri(), "dilation")
    assert "Dilation" in titles
    assert (logged, hosts) == ([], set())


def search_in(browser, address, words):
    """Search in a page opened in a browser: titles found, what the page logged, and other hosts it asked."""
    from selenium import webdriver
    from selenium.webdriver.support.wait import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = "return [...document.querySelectorAll('.md-search-result :is(h1, h2)')].map(e => e.innerText)"
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # no sanitizer in it
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"), env=env))
    try:
        driver.get(address)
        driver.execute_script("document.querySelector('[data-md-toggle=search]').click()")
        driver.find_element("css selector", ".md-search__input").send_keys(words)
        titles = WebDriverWait(driver, HANG).until(lambda driver: driver.execute_script(found))
        sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
        return titles, driver.get_log("browser"), {urlsplit(url).hostname for url in urls} - {None, ""}
    finally:
        driver.quit()


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ('<script src="https://cdn.example/x.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.example/css">', 1),
        ('<img src="http://img.example/x.png">', 1),
        ('<a href="https://example.org">a link to follow</a><img src="assets/x.svg">', 0),
    ],
)
def test_references_to_other_hosts_are_found(hooks, html, count):
    parser = hooks.Outside()
    parser.feed(html)
    assert len(parser.found) == count


def test_readme_is_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 140
    links = re.findall(r"\]\(([^)]+)\)", text)
    headings = {re.sub(r"\W+", "-", title.lower()) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    for link in links:
        assert link[1:] in headings if link.startswith("#") else (ROOT / link).exists(), link
    assert {"docs/assets/pool.svg", "docs/assets/speed.svg", "docs/performance.md"} <= set(links)


def test_every_result_is_in_the_documentation():
    """That the tables are up to date, the generator checks; here, that the pages ask for them."""
    rows = r"<!-- bench:summary -->\n(.*?)\n\n.*?<!-- /bench -->"
    table = re.search(rows, (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert 6 <= len(table[1].splitlines()) - 2 <= 8
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert re.search(rf"^<!-- bench:{path.stem} -->\n\|", page, re.MULTILINE), path.name


def ratios(name, group, peers):
    """The speedups over the fastest of some peers, from the numbers of a results file alone."""
    document = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    times = [
        {who: entry["median"] for who, entry in result["times"].items()}
        for result in document["results"]
        if result["group"] == group and (name == "cpu" or result["network"] == "large batches")
    ]
    own = {"ndpool", "kernel", "floor"}
    return sorted(
        min(seconds for who, seconds in case.items() if who in (peers or case.keys() - own)) / case["ndpool"]
        for case in times
        if peers is None or peers & case.keys()
    )


@pytest.mark.parametrize(
    ("name", "group", "title"),
    [
        ("cpu", "max 3x3 s2 NCHW", "max pooling 3x3, stride 2, forward"),
        ("cpu", "global avg", "global average pooling, forward"),
        ("gpu", "max 3x3 s2 p1, backward", "max pooling 3x3, stride 2, backward"),
    ],
)
def test_readme_has_the_slowest_and_the_fastest_case_of_a_class(name, group, title):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {re.escape(title)} \| [^|]+ \| (.+) \| (.+) \|$", text, re.MULTILINE)
    for shown, peers in ((row[1], {"PyTorch"}), (row[2], None)):
        found = ratios(name, group, peers)
        low, high = (float(number) for number in shown.split(" to "))
        assert (low, high) == pytest.approx((found[0], found[-1]), rel=6e-3)


def test_picture_of_the_readme_is_up_to_date(tmp_path):
    """`ndpool demo --output docs/assets/pool.svg` draws it."""
    assert _cli.main(["demo", "--output", str(tmp_path / "pool.svg")]) == 0
    drawn = (tmp_path / "pool.svg").read_text(encoding="utf-8")
    assert drawn == (ROOT / "docs" / "assets" / "pool.svg").read_text(encoding="utf-8")


# Public requests that a page answers, and where.
ANSWERED = {
    "DEFECT-YOLO#1": ("guides/reproducible.md", "What stays the same", "same bits"),
    "acquire-zarr#101": ("guides/segmentation.md", "Shrinking masks and labels", "counts.argmax"),
    "equinox#641": ("migrate/jax.md", "What JAX lacks and ndpool has", "adaptive_windows(90, 4)"),
    "esdl-core#3": ("guides/images.md", "Missing values", "its mask would be lost"),
    "keras#3777": ("guides/classification.md", "Sequences of different length", 'reduce="sum"'),
    "phasorpy#87": ("guides/images.md", "Missing values", "mean_of_known"),
    "oneDNN#259": ("windows.md", "Indices", "flattened plane"),
    "pytorch#103423": ("windows.md", "Padding", "kernel_size // 2"),
    "pytorch#108197": ("windows.md", "Adaptive windows", "ceil((o + 1) * s / n)"),
    "pytorch#108341": ("guides/reproducible.md", "Two trainings, the same weights", "StripAttention"),
    "pytorch#3867": ("windows.md", "Padding", "ceil(size / stride)"),
    "pytorch#62636": ("functions/average.md", "What an average is divided by", "divisor_override"),
    "pytorch#78249": ("functions/unpool.md", "Pitfalls", "Repeated indices"),
    "pytorch#88144": ("windows.md", "Ceil mode", "(out - 1) * stride >= size + before"),
    "reducer#194": ("guides/images.md", "Large scenes in bands", "np.concatenate(bands)"),
    "scikit-image#2827": ("functions/adaptive.md", "When to use it, and when not", "area weights"),
    "scikit-image#4940": ("migrate/scikit-image.md", "Sizes that do not divide", "ceil_mode=True"),
    "scipy#7818": ("migrate/scipy.md", "What differs", "Running sums"),
    "scipy#9077": ("migrate/scipy.md", "What differs", "NaN"),
    "stackoverflow#42463172": ("guides/images.md", "Smaller pictures", "ndpool.pool"),
    "tensorflow#51682": ("guides/reproducible.md", "Ties and gradients", "first in row-major order"),
    "dask-image#136": ("guides/larger-than-memory.md", "Pyramids to Zarr", "from the one before"),
    "fractal-tasks-core#42": ("guides/larger-than-memory.md", "Pyramids to Zarr", "minima darken"),
    "ngff-zarr#48": ("guides/larger-than-memory.md", "Larger than memory: Dask", "one task per output chunk"),
    "ome-zarr-py#215": ("guides/larger-than-memory.md", "Pyramids to Zarr", "nothing but a few chunks"),
    "ome-zarr-py#254": ("guides/larger-than-memory.md", "Pyramids to Zarr", "reduction that is used"),
    "oocgcm#25": ("guides/larger-than-memory.md", "Coarse graining with missing values", "values that exist"),
    "xarray#9890": (
        "guides/larger-than-memory.md",
        "Window and hop on named dimensions",
        "rolling mean over time",
    ),
    "xarray#9696": ("guides/audio.md", "Window and hop", "stride=160"),
}


@pytest.mark.parametrize("request_name", ANSWERED)
def test_a_public_request_is_answered(request_name):
    """The section exists and says so; that its code is right, the page's own test shows."""
    page, heading, words = ANSWERED[request_name]
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = re.search(rf"^(#+) {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert words in section[2]
