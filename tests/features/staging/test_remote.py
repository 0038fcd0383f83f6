"""Sources that are not files: a hub on this machine, and s5cmd in words that it was seen to say."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from staged_node import Node

from hpckit.errors import ConfigError
from hpckit.features.staging.items import Kind
from hpckit.features.staging.place import NodeDataError
from hpckit.features.staging.remote import inspect_object_source, resolve_hub_source

COMMIT = "c0ffee" * 6 + "abcd"
FILES = {"config.json": b"{}", "deep/model.safetensors": bytes(range(256)) * 40}


class _Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for one model, `org/name`, whose `main` is COMMIT."""

    damaged = False

    def do_GET(self) -> None:
        """Answer."""
        listed = [
            {"rfilename": name, "size": len(data), "lfs": {"sha256": hashlib.sha256(data).hexdigest()}}
            for name, data in FILES.items()
        ]
        path = self.path.partition("?")[0]
        answers = {
            f"/api/models/org/name/revision/{revision}": json.dumps(
                {"sha": COMMIT, "siblings": listed}
            ).encode()
            for revision in ("main", COMMIT)
        }
        answers |= {f"/org/name/resolve/{COMMIT}/{name}": data for name, data in FILES.items()}
        found = answers.get(path)
        if found is not None and self.damaged and path.endswith("safetensors"):
            found = found[:-1] + b"x"
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        self.wfile.write(found or b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    """Serve one model; return the endpoint."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_model_is_that_of_the_commit_at_launch(hub: str, node: Callable[..., Node]) -> None:
    """The revision becomes a commit at launch; the node has the hub's own cache, which works offline."""
    source = resolve_hub_source("hf://org/name", {"HF_ENDPOINT": hub})
    assert (source.commit, source.bytes, source.kind) == (COMMIT, sum(map(len, FILES.values())), Kind.hf)
    first, second = node("n1", source), node("n2", source)
    path = first.stage()
    assert {name: (path / name).read_bytes() for name in FILES} == FILES
    assert (path.parents[1] / "refs" / "main").read_text() == COMMIT
    assert path.parents[1].name == "models--org--name"
    again = second.stage(first.address)
    assert second.how == "tree"
    assert {name: (again / name).read_bytes() for name in FILES} == FILES


def test_a_damaged_download_is_refused(
    hub: str, node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that has not the sum that the hub states is not taken."""
    monkeypatch.setattr(_Hub, "damaged", True)
    source = resolve_hub_source("hf://org/name@main", {"HF_ENDPOINT": hub})
    with pytest.raises(NodeDataError, match="came damaged"):
        node("n1", source).stage()


@pytest.mark.parametrize("url", ["hf://org/other", "hf://org/name@gone"])
def test_what_the_hub_does_not_have_is_refused(hub: str, url: str) -> None:
    """One clear error at launch, with what the hub said."""
    with pytest.raises(ConfigError, match="HTTP 404"):
        resolve_hub_source(url, {"HF_ENDPOINT": hub})


def test_a_hub_out_of_reach_is_said() -> None:
    """Without the internet the error says what to do."""
    with pytest.raises(ConfigError, match="Connection refused") as raised:
        resolve_hub_source("hf://org/name", {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert "stage that folder" in raised.value.hint


_S5CMD = """#!/bin/sh
# s5cmd 2.x: `ls` prints a line of JSON for each object, `cp` copies.
store={store}
if [ "$1" = --json ]; then
    for file in $store/*; do
        name=$(basename $file)
        tag=$(md5sum <$file | cut -c1-8) size=$(stat -c %s $file)
        printf '{{"key":"%s","etag":"%s","type":"file","size":%s}}\\n' s3://bucket/set/$name $tag $size
    done
else
    cp $store/* "$3"
fi
"""


def test_objects_come_by_the_tool_that_is_there(tmp_path: Path, node: Callable[..., Node]) -> None:
    """A prefix is listed at launch, and copied on the node; one that changed in between is refused."""
    store, tools = tmp_path / "store", tmp_path / "bin"
    store.mkdir()
    tools.mkdir()
    (store / "a").write_bytes(b"123")
    (store / "b").write_bytes(b"45")
    (tools / "s5cmd").write_text(_S5CMD.format(store=store))
    (tools / "s5cmd").chmod(0o755)
    environ = {"PATH": f"{tools}:/usr/bin:/bin"}
    source = inspect_object_source("s3://bucket/set/", environ)
    assert (source.bytes, source.files) == (5, 2)
    here = node("n1", source)
    here.environ = environ
    assert {path.name: path.read_bytes() for path in here.stage().iterdir()} == {"a": b"123", "b": b"45"}
    (store / "b").write_bytes(b"46")
    other = node("n2", source)
    other.environ = environ
    with pytest.raises(NodeDataError, match="has changed since the launch"):
        other.stage()


def test_without_a_tool_the_node_says_so(node: Callable[..., Node]) -> None:
    """Where neither tool is installed, the launch is made, and a node without one is named."""
    source = inspect_object_source("s3://bucket/key", {"PATH": ""})
    here = node("n1", source)
    here.environ = {"PATH": ""}
    with pytest.raises(NodeDataError, match="needs s5cmd or rclone"):
        here.stage()
