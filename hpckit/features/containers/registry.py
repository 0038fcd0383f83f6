"""References of images, like `docker://NAME:TAG`, and the digest that a registry has for one.

Credentials come from the files and variables of the tools that pull, and go to no record.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from hpckit.errors import RunError, UsageError
from hpckit.patterns import lazy_pattern
from hpckit.record.store import read_json_object
from hpckit.values import dataclass

_REFERENCE = lazy_pattern(
    r"(?P<scheme>docker|oras|library)://(?P<name>[A-Za-z0-9][\w.-]*(?::\d+)?(?:/[\w.-]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_HOST = lazy_pattern(r"[^/]*[.:][^/]*|localhost")
HUB, _HUB_HOST, _HUB_LOGIN = "docker.io", "registry-1.docker.io", "https://index.docker.io/v1/"
_TYPES = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)
_DIGEST = lazy_pattern(r"sha256:[0-9a-f]{64}")
_CHALLENGE = lazy_pattern(r'(\w+)="([^"]*)"')
_LOG_IN = "to log in: `docker login`, `apptainer registry login`"
_PATIENCE_S = 30.0
_MOST_BYTES = 4 * 2**20
"""The most that a registry may take for a manifest."""
_UNAUTHORIZED, _BAD_REQUEST = 401, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReference:
    """A reference in its parts. `registry` is empty for `library://`, whose service the tool knows."""

    scheme: str
    registry: str
    name: str
    tag: str
    digest: str | None = None

    @property
    def place(self) -> str:
        """The name with its registry."""
        return f"{self.registry}/{self.name}" if self.registry else self.name

    def __str__(self) -> str:
        """Return it whole: of two texts for the same image, both are this."""
        return f"{self.scheme}://{self.place}" + (f"@{self.digest}" if self.digest else f":{self.tag}")

    def slugify(self) -> str:
        """Return it as the beginning of a file's name."""
        place = self.place.removeprefix(f"{HUB}/").removeprefix("library/")
        text = place if self.digest else f"{place}-{self.tag}"
        return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[-100:]


def parse_image_reference(text: str) -> ImageReference:
    """Return a reference in its parts; raises UsageError."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{text!r} is not a reference of an image: docker://, oras:// or library:// with "
            "[HOST/]NAME[:TAG] or [HOST/]NAME@sha256:DIGEST is allowed",
            hint=f"for example: docker://nvcr.io/nvidia/pytorch:25.01-py3; {_LOG_IN}",
        )
    scheme, name, digest = found["scheme"], found["name"], found["digest"]
    registry = ""
    if scheme != "library":
        first, _, rest = name.partition("/")
        registry, name = (first, rest) if rest and _HOST.fullmatch(first) else (HUB, name)
        if name != name.lower():
            hint = f"take what its page shows, which may be {text.replace(name, name.lower(), 1)}"
            raise UsageError(f"{text} has capitals in {name}, and registries know no such names", hint=hint)
        name = f"library/{name}" if registry == HUB and "/" not in name else name
    return ImageReference(
        scheme=scheme, registry=registry, name=name, tag=found["tag"] or "latest", digest=digest
    )


def resolve_digest(
    reference: ImageReference, environ: Mapping[str, str], *, plain_http: bool = False
) -> str | None:
    """Return the digest that a reference has now; None for `library://`, which names files alone.

    Raises UsageError if the registry has no such image or refuses, RunError if it does not answer.
    """
    if reference.digest or not reference.registry:
        return reference.digest
    host = _HUB_HOST if reference.registry == HUB else reference.registry
    url = f"{'http' if plain_http else 'https'}://{host}/v2/{reference.name}/manifests/{reference.tag}"
    login = _find_login(reference.registry, environ)
    hint = f"look at the name and the network; {_LOG_IN}"
    try:
        answer, _ = _ask_with_login("HEAD", url, login)
        digest = answer.headers.get("Docker-Content-Digest", "")
        if not _DIGEST.fullmatch(digest):
            _, body = _ask_with_login("GET", url, login)
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    except urllib.error.HTTPError as error:
        if plain_http and error.code == _BAD_REQUEST:
            hint = "does it speak HTTPS? then leave out --plain-http"
        told = f"{reference.registry} refuses {reference}: {error.code} {error.reason}"
        raise UsageError(told, hint=hint) from None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError) and not isinstance(reason, ssl.SSLCertVerificationError):
            hint = "does it speak HTTP, without TLS? for a registry of your own: --plain-http"
        told = f"{reference.registry} does not answer about {reference}: {reason}"
        raise RunError(told, hint=hint) from None
    return digest


def _ask_with_login(method: str, url: str, login: str | None) -> tuple[HTTPResponse, bytes]:
    """Ask; if the registry wants to know who asks, say so as it tells. Raises OSError, ValueError."""
    try:
        return _ask(method, url, {"Accept": _TYPES})
    except urllib.error.HTTPError as error:
        if error.code != _UNAUTHORIZED:
            raise
        wanted = error.headers.get("WWW-Authenticate", "")
    asked = dict(_CHALLENGE.findall(wanted))
    proof = {"Authorization": f"Basic {login}"} if login else {}
    if wanted.lower().startswith("bearer "):
        realm = asked.get("realm", "")
        if urlsplit(realm).scheme not in ("https", urlsplit(url).scheme):
            raise ValueError(f"it sends logins to {realm!r}, which is not https")
        query = urlencode({key: asked[key] for key in ("service", "scope") if key in asked})
        given = json.loads(_ask("GET", f"{realm}?{query}", proof)[1])
        token = given.get("token") or given.get("access_token") if isinstance(given, dict) else None
        proof = {"Authorization": f"Bearer {token}"}
    return _ask(method, url, {"Accept": _TYPES, **proof})


def _ask(method: str, url: str, headers: Mapping[str, str]) -> tuple[HTTPResponse, bytes]:
    request = urllib.request.Request(url, method=method)  # noqa: S310  # its scheme is http or https
    for name, value in headers.items():
        request.add_unredirected_header(name, value)  # a login is for this host alone
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:  # noqa: S310  # as above
        return answer, answer.read(_MOST_BYTES)


def _find_login(registry: str, environ: Mapping[str, str]) -> str | None:
    """Return the login for a registry as `Basic` takes it: that of Apptainer's variables, or of a file."""
    for tool in ("APPTAINER", "SINGULARITY"):
        name, password = environ.get(f"{tool}_DOCKER_USERNAME"), environ.get(f"{tool}_DOCKER_PASSWORD")
        if name and password:
            return base64.b64encode(f"{name}:{password}".encode()).decode()
    home = Path(environ.get("HOME") or "/nonexistent")
    folders = (Path(environ.get("DOCKER_CONFIG") or home / ".docker"), home / ".apptainer")
    for file in (folders[0] / "config.json", folders[1] / "docker-config.json"):
        known: Any = read_json_object(file).get("auths")
        for key in (registry, f"https://{registry}", *((_HUB_LOGIN,) if registry == HUB else ())):
            entry = known.get(key) if isinstance(known, dict) else None
            if isinstance(entry, dict) and entry.get("auth"):
                return str(entry["auth"])
    return None
