"""Sources that are not files: `hf://` by the hub's HTTP interface, `s3://` by s5cmd or rclone."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from hpckit.errors import ConfigError
from hpckit.features.staging.items import FrozenSource, Kind
from hpckit.features.staging.listing import SourceError
from hpckit.patterns import lazy_pattern
from hpckit.record.store import make_private_folder
from hpckit.values import replace

_HUB = "https://huggingface.co"
_NO_ANSWER = (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError)
_SECONDS = 60
_PIECE = 8 << 20
_OF_HUB = lazy_pattern(r"hf://(datasets/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?\Z")
_OF_S3 = lazy_pattern(r"s3://[^/*?\s]+/[^*?\s]*\Z")


def resolve_hub_source(url: str, environ: Mapping[str, str]) -> FrozenSource:
    """Return a model or data set of the hub with the commit that its revision is now; raises ConfigError."""
    match = _OF_HUB.match(url)
    if match is None:
        hint = "hf://ORG/NAME, hf://ORG/NAME@REVISION or hf://datasets/ORG/NAME"
        raise ConfigError(f"{url} is not the address of a model", hint=hint)
    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/") or _HUB
    revision = match[3] or "main"
    place = f"hf://{match[1] or ''}{match[2]}@{revision}"
    source = FrozenSource(place=place, kind=Kind.hf, bytes=0, endpoint=endpoint, commit=revision)
    try:
        told = _ask_hub(source, environ)
        sizes = [int(one.get("size") or 0) for one in told["siblings"]]
        commit = str(told["sha"])
    except (OSError, ValueError, KeyError, TypeError, HTTPException) as error:
        words = f"{url} cannot be resolved to a commit at {endpoint}: {_explain(error)}"
        needs = "the machine that launches needs the hub (HF_ENDPOINT, HF_TOKEN)"
        raise ConfigError(words, hint=f"{needs}; or download it once, and stage that folder") from error
    return replace(source, bytes=sum(sizes), files=len(sizes), commit=commit)


def _explain(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__)


def _open_url(url: str, environ: Mapping[str, str]) -> Any:
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is neither https:// nor http://")
    request = urllib.request.Request(url)  # noqa: S310  # checked above
    if token := environ.get("HF_TOKEN"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    return urllib.request.urlopen(request, timeout=_SECONDS)  # noqa: S310


def _ask_hub(source: FrozenSource, environ: Mapping[str, str]) -> Any:
    match = _OF_HUB.match(source.place)
    assert match is not None, source.place  # noqa: S101
    kind = "datasets" if match[1] else "models"
    revision = urllib.parse.quote(source.commit, safe="")
    url = f"{source.endpoint}/api/{kind}/{match[2]}/revision/{revision}?blobs=true"
    with _open_url(url, environ) as answer:
        return json.load(answer)


def fetch_hub_source(source: FrozenSource, folder: Path, environ: Mapping[str, str]) -> None:
    """Download a commit in the form of the hub's own cache; raises SourceError, OSError."""
    match = _OF_HUB.match(source.place)
    assert match is not None, source.place  # noqa: S101
    base = folder / source.base_name
    snapshot = base / "snapshots" / source.commit
    try:
        for one in _ask_hub(source, environ)["siblings"]:
            name = str(one["rfilename"])
            target = snapshot / name
            if ".." in name.split("/") or name.startswith("/"):
                raise SourceError(f"has a file {name!r}")
            make_private_folder(target.parent)
            if target.is_file() and target.stat().st_size == one.get("size"):
                continue
            path = urllib.parse.quote(name)
            url = f"{source.endpoint}/{match[1] or ''}{match[2]}/resolve/{source.commit}/{path}"
            wanted = (one.get("lfs") or {}).get("sha256")
            _download(url, target, wanted, one.get("size"), environ)
    except (KeyError, TypeError, ValueError, *_NO_ANSWER) as error:
        raise SourceError(f"cannot be downloaded from {source.endpoint}: {_explain(error)}") from error
    reference = base / "refs" / (match[3] or "main")
    make_private_folder(reference.parent)
    reference.write_text(source.commit)


def _download(
    url: str, target: Path, wanted: str | None, size: int | None, environ: Mapping[str, str]
) -> None:
    found, part = hashlib.sha256(), target.with_name(f"{target.name}.incomplete")
    with _open_url(url, environ) as answer, part.open("wb") as file:
        while piece := answer.read(_PIECE):
            found.update(piece)
            file.write(piece)
    # A connection that ends too early looks like the end of the file.
    if (wanted and found.hexdigest() != wanted) or (size is not None and part.stat().st_size != size):
        part.unlink()
        raise SourceError(f"came damaged: {url}")
    part.rename(target)


def find_object_tool(environ: Mapping[str, str]) -> str | None:
    """Return s5cmd or rclone, whichever is installed; None if neither is."""
    path = environ.get("PATH", "")
    return shutil.which("s5cmd", path=path) or shutil.which("rclone", path=path)


def inspect_object_source(url: str, environ: Mapping[str, str]) -> FrozenSource:
    """Return what is behind an `s3://` now; sizes are unknown (0) where no tool is installed."""
    if _OF_S3.match(url) is None:
        hint = "s3://BUCKET/KEY, or s3://BUCKET/PREFIX/"
        raise ConfigError(f"{url} is not the address of an object", hint=hint)
    tool = find_object_tool(environ)
    if tool is None:
        return FrozenSource(place=url, kind=Kind.s3, bytes=0)
    try:
        listed = _list_objects(tool, url, environ)
    except SourceError as error:
        hint = "credentials and endpoint are those of s5cmd or rclone"
        raise ConfigError(f"{url} {error}", hint=hint) from error
    if not listed:
        raise ConfigError(f"{url} does not exist", hint="a prefix ends with a slash: s3://BUCKET/PREFIX/")
    size = sum(size for _, size, _ in listed)
    return FrozenSource(place=url, kind=Kind.s3, bytes=size, files=len(listed), digest=_digest(listed))


def fetch_object_source(source: FrozenSource, folder: Path, environ: Mapping[str, str]) -> None:
    """Copy an object, or all below a prefix; raises SourceError."""
    tool = find_object_tool(environ)
    if tool is None:
        raise SourceError("needs s5cmd or rclone, and neither is installed on the node")
    if source.digest and _digest(_list_objects(tool, source.place, environ)) != source.digest:
        raise SourceError("has changed since the launch")
    many = source.place.endswith("/")
    target = folder / source.base_name
    make_private_folder(target if many else folder)
    if Path(tool).name == "s5cmd":
        words = ["cp", _to_s5cmd(source.place), f"{target}/" if many else str(target)]
    else:
        words = ["copy" if many else "copyto", _to_rclone(source.place), str(target)]
    _run_tool([tool, *words], environ)


def _list_objects(tool: str, url: str, environ: Mapping[str, str]) -> list[tuple[str, int, str]]:
    if Path(tool).name == "s5cmd":
        told = _run_tool([tool, "--json", "ls", _to_s5cmd(url)], environ)
        found = [json.loads(line) for line in told.splitlines()]
        return [
            (one["key"], int(one["size"]), one.get("etag", "")) for one in found if one.get("type") == "file"
        ]
    told = _run_tool([tool, "lsjson", "-R", "--files-only", _to_rclone(url)], environ)
    return [(one["Path"], int(one["Size"]), one.get("ModTime", "")) for one in json.loads(told)]


def _digest(listed: list[tuple[str, int, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(listed)).encode()).hexdigest()


def _to_s5cmd(url: str) -> str:
    return f"{url}*" if url.endswith("/") else url


def _to_rclone(url: str) -> str:
    return f":s3,env_auth=true:{url.removeprefix('s3://')}"


def _run_tool(words: list[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=dict(environ), check=False)
    except OSError as error:
        raise SourceError(f"cannot be read: {words[0]}: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SourceError(f"cannot be read: {Path(words[0]).name} said: {lines[-1][:200]}")
    return done.stdout
