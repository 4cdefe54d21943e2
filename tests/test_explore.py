"""The explorer without a browser: states, answers, code, the server and its errors, the exported page."""

import base64
import hashlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from urllib.parse import urlencode

import numpy as np
import pytest

import ndpool
from explorer import Expected, draw, query, running, wait_until
from helpers import HANG
from ndpool._cli import main
from ndpool._explore import server as server_module
from ndpool._explore.answer import answer, data, show
from ndpool._explore.page import page
from ndpool._explore.state import State, parse


def random_answers(seed, count):
    """Random settings with valid windows, and their answers."""
    generator = random.Random(seed)
    found = []
    while len(found) < count:
        settings = draw(generator)
        state = parse(query(settings))
        with suppress(ValueError):  # invalid windows
            found.append((settings, answer(state)))
    return found


ANSWERS = random_answers(0, 300)


def numbers(plane):
    return np.array([float(text) for text in plane["exact"]]).reshape(plane["shape"])


# States


def test_state_round_trips_through_its_url():
    for settings, reply in ANSWERS:
        state = parse(query(settings))
        assert parse(str(state)) == state
        assert parse(f"http://127.0.0.1:7667/#{state}") == state
        assert reply["state"] == str(state)
    assert str(State()) == str(parse("")) == ""
    assert str(parse("dims=1")) == "dims=1"


def test_url_is_short_and_complete():
    text = (
        "reduce=avg&size=7x9&kernel=2&stride=&padding=1,0x2&data=custom&values=1,nan,-inf;0.1,2&at=3&play=1"
    )
    state = parse(text)
    assert state == State(
        reduce="avg",
        size=(7, 9),
        kernel=(2, 2),
        stride=None,
        padding=((1, 0), (2, 2)),
        data="custom",
        values=state.values,
        at=3,
        play=True,
    )
    assert str(state) == text
    assert str(parse("size=6x8&kernel=3x3&dims=2&ceil_mode=0&padding=1,1x1")) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size=0", "size must be from 1 to 32; got size=0"),
        ("size=-3x4", "size must be from 1 to 32; got size=-3"),
        ("size=33", "size must be from 1 to 32; got size=33"),
        ("size=99999999999999999999999", "size must be an integer"),
        ("size=2x2x2", "size must have one number per axis (2)"),
        ("dims=3", "dims must be from 1 to 2"),
        ("dims=1&size=2x2", "size must have one number per axis (1)"),
        ("kernel=", "kernel must be an integer; got kernel=''"),
        ("kernel=2.5", "kernel must be an integer"),
        ("kernel=\u0663", "kernel must be an integer"),
        ("stride=0", "stride must be from 1 to 32"),
        ("padding=-1", "padding must be from 0 to 16"),
        ("padding=1,2,3", "padding must be n or before,after per axis"),
        ("padding=full", "padding must be an integer; got padding='full'"),
        ("dilation=17", "dilation must be from 1 to 16"),
        ("reduce=median", "reduce must be one of max, min, sum, avg, lp"),
        ("mode=random", "mode must be one of sliding, adaptive"),
        ("ceil_mode=yes", "ceil_mode must be an integer"),
        ("norm_type=two", "norm_type must be a number"),
        ("reduce=lp&norm_type=0", "norm_type must be a number other than 0"),
        ("reduce=lp&norm_type=nan", "norm_type must be a number other than 0"),
        ("reduce=avg&divisor_override=0", "divisor_override must be a 64-bit integer other than 0"),
        ("seed=-1", "seed must be from 0"),
        ("data=custom&values=1,a", "values must be a number"),
        ("data=custom&values=" + ";" * 40, "values must be a number"),
        ("data=custom&values=" + ",".join("1" * 33), "at most 32 rows and columns"),
        ("colour=red", "unknown setting 'colour'"),
        ("size=4&size=5", "size is given twice"),
        ("kernel=9", "window must fit into the padded input"),
        ("padding=5", "every window must contain an element"),
        ("values=" + "1" * 40_000, "too long"),
    ],
)
def test_bad_state_raises(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        answer(parse(text))


# Answers


def test_answers_match_the_oracle():
    for settings, reply in ANSWERS:
        expected = Expected(settings)
        assert (numbers(reply["input"]) == expected.x).all()
        np.testing.assert_allclose(
            numbers(reply["output"]), expected.y, rtol=1e-12, atol=1e-12, err_msg=str(settings)
        )
        for name in ("index", "divisor"):
            wanted = getattr(expected, name)
            assert reply[name] == (None if wanted is None else wanted.ravel().tolist()), settings
        for axis, windows, pad in zip(reply["axes"], expected.plan, expected.pads, strict=True):
            assert (axis["before"], axis["after"]) == pad
            assert [[i for i in taps if 0 <= i < axis["size"]] for taps in axis["taps"]] == [
                window.positions for window in windows
            ]
            if not expected.adaptive:
                kernel, end = len(axis["taps"][0]), axis["size"] + pad[1]
                assert [sum(i < end for i in taps) for taps in axis["taps"]] == [w.count for w in windows]
                assert {len(taps) for taps in axis["taps"]} == {kernel}


def test_formula_gives_the_size():
    dropped = 0
    for _, reply in ANSWERS:
        for line, axis in zip(reply["formula"], reply["axes"], strict=True):
            assert line["out"] == axis["out"]
            if reply["mode"] == "sliding":
                top = eval(line["top"].replace("−", "-").replace("·", "*"))  # noqa: RUF001
                quotient = top / int(line["bottom"])
                written = int(np.ceil(quotient) if line["round"] == "ceil" else np.floor(quotient)) + 1
                assert (written == axis["out"]) == (line["note"] == "")
                dropped += written != axis["out"]
    assert dropped > 5


@pytest.mark.parametrize("library", ["ndpool", "numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_code_gives_the_output(library):
    if library == "torch":
        pytest.importorskip("torch")
    ran = 0
    own = "data=custom&values=1,nan,3;-4,5,inf&size=3x4&reduce="
    more = [({}, answer(parse(own + reduce))) for reduce in ("max", "min", "avg", "sum")]
    for settings, reply in ANSWERS + more:
        code, note = reply["code"][library]["code"], reply["code"][library]["note"]
        if not code:
            assert library == "torch"
            assert note.startswith("PyTorch cannot: ")
            continue
        scope = {}
        with np.errstate(all="ignore"):
            exec(code, scope)
        y = np.asarray(scope["y"])
        assert y.shape[y.ndim - reply["dims"] :] == tuple(reply["output"]["shape"])
        expected = numbers(reply["output"]).reshape(y.shape)
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12, err_msg=f"{settings}\n{code}")
        if "i" in scope:
            assert np.asarray(scope["i"]).ravel().tolist() == reply["index"]
        ran += 1
    assert ran > 150


def test_pytorch_code_is_missing_only_where_pytorch_cannot():
    notes = {note for _, a in ANSWERS if (note := a["code"]["torch"]["note"]).startswith("PyTorch cannot")}
    assert len(notes) == 6, notes
    for settings, a in ANSWERS:
        plain = settings["dilation"] == ["1"] * a["dims"] and a["mode"] == "sliding"
        if plain and settings["padding"] == ["valid"]:
            assert a["code"]["torch"]["code"]
    assert (
        "F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True)"
        in answer(State())["code"]["torch"]["code"]
    )


def test_custom_values_are_cropped_or_padded_to_the_size():
    state = parse("data=custom&size=2x3&values=1,2;3,4,5,6;7")
    assert data(state).tolist() == [[1, 2, 0], [3, 4, 5]]


def test_numbers_are_formatted_for_people():
    texts = [show(v) for v in (3.0, -0.0, -2.5, 1 / 3, 123456.0, float("nan"), float("-inf"))]
    assert texts == ["3", "0", "\N{MINUS SIGN}2.5", "0.333", "1.23e+05", "NaN", "\N{MINUS SIGN}∞"]


@pytest.mark.parametrize("values", ["nan,nan;nan,nan", "inf,-inf;0,1", "1e308,-1e308;0,0", "5,5;5,5"])
def test_extremes_are_drawn(values):
    reply = answer(parse(f"data=custom&size=2&kernel=1&stride=1&padding=0&values={values}"))
    json.loads(json.dumps(reply, allow_nan=False))
    assert all(0 <= shade <= 1 for shade in reply["shades"] + reply["outputShades"])


# The server


@pytest.fixture(scope="module")
def server():
    with running() as server:
        yield server


def ask(server, method, path, body=None, **headers):
    """The status, headers and body of the response; request headers that are None are not sent."""
    own = f"127.0.0.1:{server.server_port}"
    sent = {"Host": own, **({"Origin": f"http://{own}"} if method == "POST" else {}), **headers}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=HANG)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    if body is not None and "Content-Length" not in sent:
        sent["Content-Length"] = str(len(body))
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    result = response.status, response.headers, response.read()
    connection.close()
    return result


@pytest.mark.parametrize(
    ("path", "kind", "word"),
    [
        ("/", "text/html", b"<title>ndpool"),
        ("/app.js", "text/javascript", b"fetch("),
        ("/style.css", "text/css", b"--"),
    ],
)
def test_page_is_served_with_a_strict_policy(server, path, kind, word):
    status, headers, body = ask(server, "GET", path)
    assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
    assert word in body
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers
    assert headers["Server"].strip() == "ndpool"
    status, headers, nothing = ask(server, "HEAD", path)
    assert (status, headers["Content-Length"], nothing) == (200, str(len(body)), b"")


def test_answer_over_http(server):
    for settings, reply in ANSWERS[:20]:
        status, headers, body = ask(server, "GET", f"/api/pool?{query(settings)}")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body) == reply


def test_error_message_has_status_200(server):
    """A browser would log another status as an error of the page."""
    status, headers, body = ask(server, "GET", "/api/pool?size=-1")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == {"error": "explore: size must be from 1 to 32; got size=-1"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/../server.py", 404),
        ("GET", "/server.py", 404),
        ("POST", "/api/pool", 404),
        ("PUT", "/", 501),
        ("GET", "/api/pool?" + "a" * 70_000, 414),
    ],
)
def test_errors_are_json(server, method, path, status):
    actual, headers, body = ask(server, method, path, Origin=f"http://127.0.0.1:{server.server_port}")
    assert actual == status
    assert set(json.loads(body)) == {"error"}
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "localhost:1",
        "127.0.0.1",
        "192.168.0.1:{port}",
        "user@127.0.0.1:{port}",
        "127.0.0.1:{port}/x",
        "127.0.0.1:notaport",
        "[::1",
        "",
        None,
    ],
)
def test_foreign_host_names_are_rejected(server, host):
    """DNS rebinding: a foreign host name that resolves to loopback gets no page."""
    host = host and host.format(port=server.server_port)
    for path in ("/", "/api/pool"):
        assert ask(server, "GET", path, Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]"])
def test_own_host_names_are_accepted(server, host):
    assert ask(server, "GET", "/", Host=f"{host}:{server.server_port}")[0] == 200


def test_host_names_of_a_server_on_all_interfaces(monkeypatch):
    monkeypatch.setattr(server_module.Server, "server_bind", lambda self: setattr(self, "server_port", 80))
    monkeypatch.setattr(server_module.Server, "server_activate", lambda self: None)
    wide, narrow = server_module.Server("0.0.0.0", 80), server_module.Server("example.test", 80)
    assert wide.trusts("192.168.0.1")
    assert wide.trusts("[fe80::1]:80")
    assert not wide.trusts("evil.example")
    assert narrow.trusts("example.test")
    assert not narrow.trusts("192.168.0.1")
    assert (wide.url, narrow.url) == ("http://127.0.0.1:80/", "http://example.test:80/")
    for server in (wide, narrow):
        server.server_close()


@pytest.mark.parametrize(
    ("method", "origin", "status"),
    [
        ("POST", None, 403),
        ("POST", "null", 403),
        ("POST", "http://evil.example", 403),
        ("POST", "https://127.0.0.1:{port}", 403),
        ("POST", "http://127.0.0.1:1", 403),
        ("POST", "http://127.0.0.1:{port}", 200),
        ("GET", "http://evil.example", 403),
        ("GET", None, 200),
    ],
)
def test_only_the_own_page_may_send_requests(server, method, origin, status):
    path = "/api/image?width=8&height=8" if method == "POST" else "/"
    origin = origin and origin.format(port=server.server_port)
    assert ask(server, method, path, bytes(256) if method == "POST" else None, Origin=origin)[0] == status


def image(shape, opaque=True):
    pixels = np.random.default_rng(3).integers(0, 256, (*shape, 4), np.uint8)
    if opaque:
        pixels[..., 3] = 255
    return pixels


def post(server, pixels, state):
    height, width = pixels.shape[:2]
    where = urlencode({"width": width, "height": height, "state": state})
    status, headers, body = ask(server, "POST", f"/api/image?{where}", pixels.tobytes())
    assert status == 200, body
    return np.frombuffer(body, np.uint8).reshape(int(headers["X-Height"]), int(headers["X-Width"]), 4)


@pytest.mark.parametrize(
    ("state", "pool"),
    [
        ("", lambda x: ndpool.pool(x, (3, 3), axes=(0, 1), stride=2, padding=1)),
        (
            "reduce=min&kernel=2x5&stride=&padding=0",
            lambda x: ndpool.pool(x, (2, 5), axes=(0, 1), reduce="min"),
        ),
        (
            "reduce=avg&kernel=2&padding=0",
            lambda x: ndpool.pool(x, (2, 2), axes=(0, 1), reduce="avg", stride=2),
        ),
        (
            "reduce=sum&kernel=2&padding=0",
            lambda x: ndpool.pool(x, (2, 2), axes=(0, 1), reduce="sum", stride=2),
        ),
        (
            "reduce=lp&kernel=2&padding=0&norm_type=-1",
            lambda x: ndpool.pool(x, (2, 2), axes=(0, 1), reduce="lp", stride=2, norm_type=-1.0),
        ),
        ("mode=adaptive&output_size=3x7", lambda x: ndpool.adaptive_pool(x, (3, 7), axes=(0, 1))),
        ("dims=1&kernel=4&padding=0", lambda x: ndpool.pool(x, (4,), axes=(1,), stride=2)),
    ],
)
@pytest.mark.parametrize("opaque", [True, False])
def test_image_is_pooled(server, state, pool, opaque):
    pixels = image((37, 50), opaque)
    expected = np.array(np.clip(pool(pixels), 0, 255).astype(np.uint8))
    if opaque:
        expected[..., 3] = 255
    result = post(server, pixels, state)
    assert (result == expected).all()


@pytest.mark.parametrize(
    ("where", "length", "status", "message"),
    [
        ("width=8&height=8", "255", 200, "8 x 8 pixels are 256 bytes; got 255"),
        ("width=8&height=8", None, 411, "must have a Content-Length"),
        ("width=8&height=8", "-256", 411, "must have a Content-Length"),
        ("width=8&height=8", "9" * 30, 200, "8 x 8 pixels are 256 bytes"),
        ("width=0&height=8", "0", 200, "width must be a positive number of pixels; got width='0'"),
        ("width=-8&height=-8", "256", 200, "height must be a positive number of pixels; got height='-8'"),
        ("height=8", "256", 200, "width must be a positive number"),
        ("width=99999&height=99999", "256", 413, "at most 16,777,216 pixels; got 99999 x 99999"),
        ("width=8&height=8&state=size%3D0", "256", 200, "size must be from 1 to 32"),
        ("width=1&height=1&state=kernel%3D9", "4", 200, "window must fit"),
    ],
)
def test_bad_image_gives_an_error(server, where, length, status, message):
    body = bytes(int(length)) if length and re.fullmatch(r"\d{1,4}", length) else b""
    actual, _, response = ask(server, "POST", f"/api/image?{where}", body, **{"Content-Length": length})
    assert actual == status
    assert message in json.loads(response)["error"]


def test_error_arrives_while_the_image_is_still_being_sent(server):
    """The client must be able to read the error instead of seeing a broken connection."""
    status, _, body = ask(server, "POST", "/api/image?width=9999&height=9999", bytes(8_000_000))
    assert status == 413
    assert b"at most" in body


def test_slow_clients_do_not_block_others_and_time_out(monkeypatch, server):
    monkeypatch.setattr(server_module.Handler, "timeout", 2)
    idle = socket.create_connection(server.server_address)
    half = socket.create_connection(server.server_address)
    half.sendall(b"GET / HTTP/1.1\r\nHost: ")
    assert ask(server, "GET", "/")[0] == 200
    for connection in (idle, half):
        connection.settimeout(HANG)
        assert connection.recv(100) == b""
        connection.close()


def test_connections_have_a_time_limit(monkeypatch, server):
    """Sending a byte now and then does not keep a thread alive."""
    monkeypatch.setattr(server_module, "TOTAL_SECONDS", 0.4)
    connection = socket.create_connection(server.server_address)
    started = time.monotonic()
    with suppress(BrokenPipeError, ConnectionResetError):
        while time.monotonic() - started < HANG:
            connection.sendall(b"G")
            time.sleep(0.05)
    assert 0.3 < time.monotonic() - started < HANG
    connection.close()


def test_number_of_connections_is_limited(monkeypatch, server):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    wait_until(lambda: not server._open)
    connections = [socket.create_connection(server.server_address) for _ in range(3)]
    wait_until(lambda: len(server._open) == 3)
    with pytest.raises((http.client.BadStatusLine, ConnectionError)):
        ask(server, "GET", "/")
    for connection in connections:
        connection.close()
    wait_until(lambda: not server._open)
    assert ask(server, "GET", "/")[0] == 200


# The command


def start(*arguments):
    command = [sys.executable, "-m", "ndpool", "explore", "--no-browser", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop(process, by=signal.SIGINT):
    process.send_signal(by)
    out, err = process.communicate(timeout=HANG)
    return process.returncode, out, err


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_command_serves_until_interrupted(by):
    process = start("--port", "0", "--state", "reduce=avg&at=2")
    line = process.stdout.readline()
    found = re.fullmatch(r"ndpool explorer: http://127\.0\.0\.1:(\d+)/#reduce=avg&at=2\n", line)
    assert found, (line, process.poll() is None or process.stderr.read())
    port = int(found[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
    connection.request("GET", "/api/pool")
    assert json.loads(connection.getresponse().read())["output"]["shape"] == [3, 4]
    assert process.stdout.readline() == "Ctrl-C stops it.\n"
    idle = socket.create_connection(("127.0.0.1", port))  # must not delay the exit
    assert stop(process, by) == (0, "\nndpool explorer: stopped\n", "")
    idle.close()


def test_command_reports_a_port_in_use_and_a_public_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("--port", str(taken.getsockname()[1]))
        out, err = process.communicate(timeout=HANG)
        assert (process.returncode, out) == (1, "")
        assert re.fullmatch(
            r"ndpool: explore: cannot listen on 127.0.0.1 port \d+: Address already in use\n", err
        )
    process = start("--port", "0", "--host", "0.0.0.0")
    assert [process.stdout.readline() for _ in range(2)][1] == "Ctrl-C stops it.\n"
    assert stop(process)[2] == "ndpool: other machines can reach this server\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "port must be from 0 to 65535"),
        (["--state", "size=0"], "size must be from 1 to 32"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_command_rejects_bad_arguments(arguments, message, capsys):
    assert main(["explore", "--no-browser", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ndpool: explore: ")
    assert message in err


def test_any_free_port_if_the_default_is_in_use(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(server_module, "PORT", taken.getsockname()[1])
        server = server_module._bind("127.0.0.1", None)
        assert server.server_port != server_module.PORT
        server.server_close()


def test_importing_ndpool_loads_no_server():
    code = "import sys, ndpool; sys.exit(str({'http.server', 'ndpool._explore'} & sys.modules.keys() or ''))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == "\n"


# The exported page


def test_exported_page_is_self_contained(tmp_path, capsys):
    path = tmp_path / "windows.html"
    state = "reduce=avg&size=5&padding=same&data=custom&values=1,nan"
    assert main(["explore", "--export", str(path), "--state", state]) == 0
    assert str(path) in capsys.readouterr().out
    html = path.read_text(encoding="utf-8")
    reply = json.loads(
        re.search(r'<script type="application/json" id="answer">(.*?)</script>', html, re.S)[1]
    )
    assert reply == answer(parse(state))
    assert not re.search(r'(?:src|href)="(?!data:|#)', html)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1]
    for tag, kind in (("style", "<style>"), ("script", '<script type="module">')):
        text = html.partition(kind)[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    for gone in ('id="controls"', 'id="file"', 'id="share"', "live -->"):
        assert gone not in html


def test_exported_answer_cannot_end_its_script(monkeypatch):
    monkeypatch.setattr("ndpool._explore.page.answer", lambda state: {"summary": "</script><b>"})
    assert (
        '<script type="application/json" id="answer">{"summary": "\\u003c/script>\\u003cb>"}</script>'
        in page()
    )


def test_export_over_http_is_the_same(server):
    status, headers, body = ask(server, "GET", "/api/export?reduce=min")
    assert (status, headers["Content-Disposition"]) == (200, "attachment")
    assert body.decode() == page("reduce=min")


def test_export_reports_a_write_error(tmp_path, capsys):
    path = tmp_path / "missing" / "windows.html"
    assert main(["explore", "--export", str(path)]) == 1
    assert capsys.readouterr().err == f"ndpool: cannot write the page to {path}: No such file or directory\n"
    assert main(["explore", "--export", os.devnull, "--state", "kernel=0"]) == 1
