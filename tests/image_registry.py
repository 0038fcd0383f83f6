"""A registry of images on the loopback: the protocol that tools speak, with its logins, and no internet."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(slots=True, kw_only=True)
class Registry:
    """What the registry has, what it wants to know of who asks, and what it was asked."""

    address: str
    port: int = 0
    token: str = ""
    login: str = ""
    names_digests: bool = True
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    manifests: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The registry as references name it."""
        return f"{self.address}:{self.port}"

    def push(self, name: str, tag: str, root: Path, *, machine: str = "amd64") -> str:
        """Keep a folder as an image of one layer; return its digest."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(root, ".")
        layer = gzip.compress(packed.getvalue(), mtime=0)
        config = {
            "architecture": machine,
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [_digest(packed.getvalue())]},
        }
        parts = {"config": json.dumps(config).encode(), "layer.v1.tar+gzip": layer}
        kept = [
            {
                "mediaType": f"application/vnd.oci.image.{kind}" + ("" if "." in kind else ".v1+json"),
                "digest": _digest(data),
                "size": len(data),
            }
            for kind, data in parts.items()
        ]
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": kept[0], "layers": kept[1:]}
        text = json.dumps(manifest).encode()
        self.blobs |= {_digest(data): data for data in parts.values()}
        self.manifests |= {f"{name}/manifests/{place}": text for place in (tag, _digest(text))}
        return _digest(text)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextmanager
def image_registry(address: str = "127.0.0.1") -> Iterator[Registry]:
    """Run an empty registry on a free port."""
    known = Registry(address=address)
    handler = type("Handler", (_Handler,), {"known": known})
    server = ThreadingHTTPServer((address, 0), handler)
    known.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    known: Registry

    def do_GET(self) -> None:
        known, authorization = self.known, self.headers.get("Authorization", "")
        known.asked.append((self.command, self.path, authorization))
        if self.path.startswith("/token"):
            wanted = f"Basic {base64.b64encode(known.login.encode()).decode()}"
            allowed = not known.login or authorization == wanted
            self._answer(200 if allowed else 401, json.dumps({"token": known.token}).encode())
        elif known.token and authorization != f"Bearer {known.token}":
            realm = f'Bearer realm="http://{known.host}/token",service="tests",scope="pull"'
            self._answer(401, b"{}", {"WWW-Authenticate": realm})
        else:
            self._answer_object(self.path.removeprefix("/v2/"))

    do_HEAD = do_GET  # noqa: N815  # the name that http.server looks for

    def _answer_object(self, path: str) -> None:
        if (text := self.known.manifests.get(path)) is not None:
            named = {"Docker-Content-Digest": _digest(text)} if self.known.names_digests else {}
            self._answer(200, text, {"Content-Type": _MANIFEST, **named})
        elif (blob := self.known.blobs.get(path.rpartition("/")[2])) is not None:
            self._answer(200, blob, {"Content-Type": "application/octet-stream"})
        else:
            self._answer(404 if path else 200, b"{}")

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
