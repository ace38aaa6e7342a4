"""A server for one user on this machine: it listens only on the loopback interface, at a secret address.

Every request must name this very host, so that no page from elsewhere can reach it under another name, and must begin
with the token. The page may fetch nothing but what this server has.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from mecheval.errors import UserError
from mecheval.explore.session import Asked, Session

MOST_BYTES = 1_000_000
"""Largest size of a request in bytes."""
PAGES = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Serves a session under a secret address."""

    daemon_threads = True
    request_queue_size = 256  # connections that wait to be accepted; more are refused

    def __init__(self, session: Session, port: int = 0) -> None:
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UserError(f"cannot listen on port {port}: {error.strerror}.") from None
        self.session, self.token, self.lock = session, secrets.token_urlsafe(24), threading.Lock()
        self.warm = threading.Thread(target=self._warm_up, daemon=True)
        self.warm.start()

    def _warm_up(self) -> None:
        """Answer once in advance, so that everything that is loaded or compiled on first use is ready for the user."""
        start = self.session.start()
        with self.lock, suppress(Exception):  # the same error is reported when the user asks
            self.session.answer(Asked.read({"clean": start["clean"], "corrupted": start["corrupted"], "patches": []}))

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"


@contextmanager
def doorway(address: str) -> Iterator[str]:
    """The URL of a file that leads to `address` and that only this user can read.

    A browser is started with a URL as an argument, which every user of this machine can see.
    """
    with tempfile.TemporaryDirectory(prefix="mecheval-") as folder:
        page = Path(folder) / "explore.html"
        page.write_text(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">\n'
        )
        yield page.as_uri()


class _Handler(BaseHTTPRequestHandler):
    """One request; `server` is a `Server`."""

    server: Server
    timeout = 30

    def do_GET(self) -> None:
        name = self._name()
        if name == "start":
            self._send_json(200, self.server.session.start())
        elif name in PAGES:
            file, kind = PAGES[name]
            self._send(200, kind, files("mecheval.explore").joinpath("assets", file).read_bytes())
        elif name is not None:
            self._send_json(404, {"error": "there is no such page."})

    def do_POST(self) -> None:
        name, length = self._name(), self.headers.get("Content-Length", "")
        if name is None:
            return
        if name != "answer" or not length.isdecimal() or int(length) > MOST_BYTES:
            self._send_json(400, {"error": "that is no request of the page."})
            return
        try:
            asked = Asked.read(json.loads(self.rfile.read(int(length))))
            with self.server.lock:
                self._send_json(200, self.server.session.answer(asked))
        except (UserError, ValueError, RecursionError) as error:
            self._send_json(400, {"error": str(error)})

    def _name(self) -> str | None:
        """What is asked for, below the token; None, with the refusal sent, where the host or the token is another."""
        hosts = {f"{host}:{self.server.server_port}" for host in ("127.0.0.1", "localhost")}
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        _, token, *rest = [*self.path.split("/", 2), ""]
        right = secrets.compare_digest(token.encode(), self.server.token.encode())
        if host not in hosts or not right or (origin is not None and origin != f"http://{host}"):
            self._send_json(403, {"error": "open the address that the command has printed."})
            return None
        return rest[0]

    def _send_json(self, status: int, value: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(value, allow_nan=False).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        with suppress(ConnectionError):  # the browser has closed the connection
            self._write(status, kind, content)

    def _write(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": len(content),
            **HEADERS,
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because the terminal shows the address."""
