"""References of images are read in one way, and a registry is asked for a digest as its protocol says."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers_world import make_cheap_root
from hypothesis import given
from hypothesis import strategies as st
from image_registry import Registry, image_registry

from hpckit.errors import RunError, UsageError
from hpckit.features.containers.registry import parse_image_reference, resolve_digest

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
LOGIN = "tester:hunter2"


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Run a registry on the loopback."""
    with image_registry() as known:
        yield known


def test_short_names_are_those_of_docker_hub() -> None:
    """As docker reads them; a first part with a dot, a colon, or localhost is a host."""
    whole = {
        "docker://ubuntu": "docker://docker.io/library/ubuntu:latest",
        "docker://team/app:1": "docker://docker.io/team/app:1",
        "docker://localhost/app": "docker://localhost/app:latest",
        "docker://nvcr.io/nvidia/pytorch:25.01-py3": "docker://nvcr.io/nvidia/pytorch:25.01-py3",
        f"oras://host:5000/app:1@{DIGEST}": f"oras://host:5000/app@{DIGEST}",
        "library://user/set/app": "library://user/set/app:latest",
    }
    assert {text: str(parse_image_reference(text)) for text in whole} == whole


@pytest.mark.parametrize(
    "text",
    [
        *("docker://", "docker://user:word@host/app", "http://host/app", "docker://a b", "docker://a//b"),
        *("docker://a@sha256:12", "docker://../a", "docker://a\n", "docker://a:t;rm", "docker://-x"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """Logins in a reference, too: it goes into records and argument lists."""
    with pytest.raises(UsageError, match="is not a reference"):
        parse_image_reference(text)


WORDS = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,8}", fullmatch=True)


@given(
    st.sampled_from(["docker", "oras", "library"]),
    st.lists(WORDS, min_size=1, max_size=4),
    st.sampled_from(["", ":1.0", f"@{DIGEST}"]),
)
def test_a_reference_reads_as_it_is_written(scheme: str, names: list[str], end: str) -> None:
    """What is recorded means the same image; its file's name is one part of a path."""
    read = parse_image_reference(f"{scheme}://{'/'.join(names)}{end}")
    assert parse_image_reference(str(read)) == read
    assert "/" not in read.slugify()
    assert not read.slugify().startswith((".", "-"))


def test_name_with_capitals_is_refused_with_what_it_may_mean() -> None:
    """Registries know none, and say so in many ways."""
    with pytest.raises(UsageError, match="has capitals in NVIDIA/PyTorch") as refused:
        parse_image_reference("docker://nvcr.io/NVIDIA/PyTorch:25.01-PY3")
    assert "docker://nvcr.io/nvidia/pytorch:25.01-PY3" in refused.value.hint


@pytest.mark.parametrize("names_digests", [True, False])
@pytest.mark.parametrize("login", ["", LOGIN])
def test_digest_is_that_of_the_registry(
    registry: Registry, tmp_path: Path, login: str, *, names_digests: bool
) -> None:
    """Also where it wants a login for a token, or names no digest; the login goes to no other place."""
    make_cheap_root(tmp_path / "root")
    digest = registry.push("team/app", "1", tmp_path / "root")
    registry.token, registry.login, registry.names_digests = "token", login, names_digests
    entry = {registry.host: {"auth": base64.b64encode(LOGIN.encode()).decode()}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": entry if login else {}}))
    reference = parse_image_reference(f"docker://{registry.host}/team/app:1")
    assert resolve_digest(reference, {"DOCKER_CONFIG": str(tmp_path)}, plain_http=True) == digest
    told = {path for _, path, authorization in registry.asked if authorization.startswith("Basic")}
    assert {path.partition("?")[0] for path in told} == ({"/token"} if login else set())


def test_digest_that_is_written_is_not_asked_for() -> None:
    """So images by digest need no registry to be found."""
    assert resolve_digest(parse_image_reference(f"docker://nowhere.invalid/app@{DIGEST}"), {}) == DIGEST


def test_what_a_registry_lacks_or_refuses_is_one_error(registry: Registry) -> None:
    """So is one that does not answer, or sends the login elsewhere without TLS."""
    reference = parse_image_reference(f"docker://{registry.host}/team/none:1")
    with pytest.raises(UsageError, match="404"):
        resolve_digest(reference, {}, plain_http=True)
    with pytest.raises(RunError, match="does not answer") as refused:
        resolve_digest(reference, {})
    assert "--plain-http" in refused.value.hint
    registry.token, registry.login = "token", LOGIN
    with pytest.raises(UsageError, match="401"):
        resolve_digest(reference, {}, plain_http=True)
