"""A real web server on the loopback for tests of notices; it records what it is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True, kw_only=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: str


@dataclass(slots=True, kw_only=True)
class NoticeServer:
    """What the server was sent, and how it answers: with `status`, after `delay_s`."""

    port: int = 0
    status: int = 200
    delay_s: float = 0.0
    location: str = ""
    received: list[Received] = field(default_factory=list)


@contextmanager
def notice_server() -> Iterator[NoticeServer]:
    """Run a server on a free port of the loopback."""
    known = NoticeServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", "0"))
            body = self.rfile.read(size).decode()
            known.received.append(Received(path=self.path, headers=dict(self.headers.items()), body=body))
            time.sleep(known.delay_s)
            self.send_response(known.status)
            if known.location:
                self.send_header("Location", known.location)
            self.end_headers()

        def do_GET(self) -> None:
            known.received.append(Received(path=self.path, headers={}, body=""))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                return  # the client gave up

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    known.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
