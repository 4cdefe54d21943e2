"""The explorer's server: the page, answers as JSON, pooled images as raw bytes; standard library only.

It listens on loopback by default, accepts only requests for its own host name (against DNS rebinding) and
images only from its own page, and limits the time, threads and memory of each connection.
"""

from __future__ import annotations

import ipaddress
import json
import re
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from ndpool._explore.answer import answer, pooled
from ndpool._explore.assets import asset
from ndpool._explore.page import page
from ndpool._explore.state import State, parse

PORT = 7667
MAX_PIXELS = 2**24
MAX_CONNECTIONS = 32
IDLE_SECONDS = 10.0  # without a byte
TOTAL_SECONDS = 60.0  # per connection
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}


class HTTPError(Exception):
    """An error response: its status and its message."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server(ThreadingHTTPServer):
    """The listening socket and the state that its connections share."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.host = host
        self.images = threading.Semaphore(2)  # images in memory at a time
        self.assets = {path: (asset(name).encode(), kind) for path, (name, kind) in _ASSETS.items()}
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Bind without resolving the host name, which may take seconds."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def url(self) -> str:
        """The URL of the page."""
        wild = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{wild}]' if ':' in wild else wild}:{self.server_port}/"

    def trusts(self, authority: str) -> bool:
        """Whether a Host header names this server; anything else may be DNS rebinding."""
        try:
            parts = urlsplit(f"//{authority}")
            host, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.server_port or parts.username is not None or parts.path:
            return False
        if host in ("localhost", "127.0.0.1", "::1", self.host.lower()):
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return self.host in ("0.0.0.0", "::")  # any address of a server on all interfaces

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection unless too many are open."""
        with self._lock:
            full = len(self._open) >= MAX_CONNECTIONS
            if not full:
                self._open[request] = time.monotonic()
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection and remove it from the open ones."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Shut down connections that exceed their time limit; called twice a second."""
        with self._lock:
            late = [r for r, since in self._open.items() if time.monotonic() - since > TOTAL_SECONDS]
        for request in late:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes the connection

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an exception, except connection errors: the client has gone or the server is stopping."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection: one request."""

    server: Server
    timeout = IDLE_SECONDS
    server_version, sys_version = "ndpool", ""

    def do_GET(self) -> None:
        """Send the page or an answer."""
        self._respond(self._get)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Pool an image."""
        self._respond(self._post)

    def _respond(self, make: Callable[[], tuple[bytes, str, dict[str, str]]]) -> None:
        try:
            self._check_sender()
            body, kind, headers = make()
        except HTTPError as error:
            self.send_error(error.status, str(error))
            self._drain()
        except (ValueError, TypeError, MemoryError) as error:
            # An invalid pool is a normal answer: browsers log other statuses as errors of the page.
            self.send_error(HTTPStatus.OK, str(error) or type(error).__name__)
            self._drain()
        else:
            self._send(HTTPStatus.OK, body, kind, headers)

    def _check_sender(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.trusts(hosts[0]):
            raise HTTPError(HTTPStatus.MISDIRECTED_REQUEST, f"explore: this server is {self.server.url}")
        origin = self.headers.get("Origin")
        # Browsers send Origin with every POST; a request without it does not come from a page.
        if origin != f"http://{hosts[0]}" and (origin is not None or self.command == "POST"):
            raise HTTPError(HTTPStatus.FORBIDDEN, "explore: only the explorer's own page may send requests")

    def _get(self) -> tuple[bytes, str, dict[str, str]]:
        path, _, query = self.path.partition("?")
        if path == "/api/pool":
            text = json.dumps(answer(parse(query)), ensure_ascii=False, allow_nan=False)
            return text.encode(), "application/json", {}
        if path == "/api/export":
            return page(query).encode(), "text/html; charset=utf-8", {"Content-Disposition": "attachment"}
        if path not in self.server.assets:
            raise HTTPError(HTTPStatus.NOT_FOUND, "explore: page not found")
        return *self.server.assets[path], {}

    def _post(self) -> tuple[bytes, str, dict[str, str]]:
        path, _, query = self.path.partition("?")
        if path != "/api/image":
            raise HTTPError(HTTPStatus.NOT_FOUND, "explore: page not found")
        given = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=4))
        state = parse(given.get("state", ""))
        height, width = (_side(name, given.get(name, "")) for name in ("height", "width"))
        if height * width > MAX_PIXELS:
            raise HTTPError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"explore: the image must have at most {MAX_PIXELS:,} pixels; got {width} x {height}",
            )
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise HTTPError(HTTPStatus.LENGTH_REQUIRED, "explore: the request must have a Content-Length")
        if int(length) != 4 * height * width:
            raise ValueError(
                f"explore: {width} x {height} pixels are {4 * height * width} bytes; got {length[:20]}"
            )
        if not self.server.images.acquire(timeout=IDLE_SECONDS):
            raise HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, "explore: too many images at once; try again")
        try:
            pixels = np.frombuffer(self._body(int(length)), np.uint8).reshape(height, width, 4)
            started = time.perf_counter()
            result = pool_image(state, pixels)
            spent = time.perf_counter() - started
            size = {"X-Height": str(result.shape[0]), "X-Width": str(result.shape[1])}
            timing = {"X-Milliseconds": f"{spent * 1e3:.3g}"}
            return result.tobytes(), "application/octet-stream", {**size, **timing}
        finally:
            self.server.images.release()

    def _body(self, length: int) -> bytearray:
        body = bytearray(length)
        view, got = memoryview(body), 0
        while got < length:
            n = self.rfile.readinto1(view[got : got + 2**20])
            if not n:
                raise ConnectionAbortedError("the image ended early")
            got += n
        return body

    def _drain(self) -> None:
        """Keep reading briefly after an error: a browser that is still sending would not see the response."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1.0)
            end, scrap = time.monotonic() + 5, bytearray(2**20)
            while time.monotonic() < end and self.rfile.readinto1(scrap):
                pass

    def _send(self, status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send errors as JSON, including those of the standard library."""
        text = message or HTTPStatus(code).phrase
        self.close_connection = True
        self._send(HTTPStatus(code), json.dumps({"error": text}).encode(), "application/json", {})

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


def _side(name: str, text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise ValueError(f"explore: {name} must be a positive number of pixels; got {name}={text[:40]!r}")
    return int(text)


def pool_image(
    state: State, pixels: np.ndarray[Any, np.dtype[np.uint8]]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Pool an image of shape (rows, columns, 4), row by row in 1-D; values are clipped to 0 to 255."""
    result = pooled(state, pixels, axes=(0, 1)[-state.dims :])
    if result.dtype != np.uint8:
        result = np.nan_to_num(np.clip(result, 0, 255), nan=0).astype(np.uint8)
    result = np.ascontiguousarray(result)
    if (pixels[..., 3] == 255).all():
        result[..., 3] = 255  # averaging with padding must not make the image transparent
    return result


def serve(host: str = "127.0.0.1", port: int | None = None, state: str = "", browser: bool = True) -> None:
    """Serve the explorer until Ctrl-C, by default on port 7667, or on a free port if that is in use."""
    fragment = str(parse(state))
    server = _bind(host, port)
    address = server.url + (f"#{fragment}" if fragment else "")
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # sent to stop a container
        if not ipaddress.ip_address(str(server.server_address[0]).partition("%")[0]).is_loopback:
            print("ndpool: other machines can reach this server", file=sys.stderr, flush=True)
        print(f"ndpool explorer: {address}\nCtrl-C stops it.", flush=True)
        if browser:
            # In a thread: a text browser would block before the server runs.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        server.serve_forever()
    except KeyboardInterrupt:
        print("\nndpool explorer: stopped")
    finally:
        server.server_close()


def _bind(host: str, port: int | None) -> Server:
    if port is not None and not 0 <= port < 2**16:
        raise ValueError(f"explore: port must be from 0 to 65535; got port={port}")
    for attempt in (PORT, 0) if port is None else (port,):
        try:
            return Server(host, attempt)
        except OSError as error:
            if attempt == 0 or port is not None:
                raise ValueError(
                    f"explore: cannot listen on {host} port {attempt}: {error.strerror}"
                ) from None
    raise AssertionError
