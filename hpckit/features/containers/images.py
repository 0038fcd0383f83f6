"""Files of pulled images: one for each reference, digest and platform, with a record as its neighbour.

An image counts only if it and its record are owned by you or root, and writable by no one else.
"""

from __future__ import annotations

import os
import platform as machine
import re
import stat
import string
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpckit.errors import NotFoundError, UsageError
from hpckit.features.containers.registry import is_image_reference, parse_image_reference
from hpckit.model.launch import Cluster
from hpckit.model.plain import from_plain
from hpckit.record.ownership import PathStatus, explain_untrusted_data
from hpckit.record.store import read_json
from hpckit.values import dataclass

_RECORD = ".json"
_PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64", "ppc64le": "linux/ppc64le"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledImage:
    """An image in a file, as its record says; `sha256` is the file's, `digest` the registry's.

    `partition` is where its job ran, if it was pulled by one.
    """

    file: str
    reference: str
    digest: str
    sha256: str
    platform: str
    bytes: int
    pulled_at: datetime
    tool: str
    partition: str | None = None

    def __fspath__(self) -> str:
        """Return the file: `Path(image)` is its path."""
        return self.file

    @property
    def name(self) -> str:
        """The file's name."""
        return Path(self.file).name

    @property
    def record(self) -> Path:
        """The file with what this says."""
        return Path(f"{self.file}{_RECORD}")


def find_image_folder(cluster: Cluster, output_dir: Path, environ: Mapping[str, str]) -> Path:
    """Return the folder of pulled images; raises UsageError unless nodes can know it by this name."""
    if cluster.image_dir is None:
        return output_dir / "images"
    text = string.Template(cluster.image_dir).safe_substitute(environ)
    if not text.startswith(("/", "~/")) or "$" in text:
        raise UsageError(
            f"cluster.image_dir={cluster.image_dir} is {text}, which is no absolute path",
            hint="for example: cluster.image_dir=/shared/$USER/images",
        )
    return Path(text).expanduser()


def list_images(folder: Path, warn: Callable[[str], object] = lambda _: None) -> list[PulledImage]:
    """Return the images in a folder, newest first; `warn` is told of those that do not count, and why."""
    _check_image_folder(folder)
    found = []
    for record in sorted(folder.glob(f"*{_RECORD}")):
        file = record.with_suffix("")
        try:
            for place in (file, record):
                check_trusted_file(place)
            known = from_plain(PulledImage, {**read_json(record), "file": str(file)})
            size = file.stat().st_size
        except FileNotFoundError:  # a record is written before its image
            continue
        except (OSError, ValueError, TypeError) as error:
            warn(f"{file} does not count as an image: {error}")
        else:
            if size == known.bytes:
                found.append(known)
            else:
                warn(f"{file} does not count as an image: it has {size} bytes of {known.bytes}")
    return sorted(found, key=lambda one: one.pulled_at, reverse=True)


def _check_image_folder(folder: Path) -> None:
    """Raise UsageError if everybody may replace files in it."""
    mode = folder.stat().st_mode if folder.is_dir() else 0
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise UsageError(
            f"everybody can replace images in {folder}", hint=f"chmod o-w {folder}, or set cluster.image_dir"
        )


def check_trusted_file(path: Path) -> None:
    """Raise OSError or ValueError for what another user may have written, and for links."""
    seen = path.lstat()
    if not stat.S_ISREG(seen.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    reason = explain_untrusted_data(
        PathStatus(path=path.name, uid=seen.st_uid, mode=seen.st_mode), os.getuid()
    )
    if reason is not None:
        raise ValueError(f"{reason.reason}; it has to be owned by you or root, and writable by no one else")


def resolve_image(
    image: str, cluster: Cluster, output_dir: Path, environ: Mapping[str, str], platform: str | None = None
) -> PulledImage | None:
    """Return the newest pulled file of a reference; None for a file or folder, which is no reference.

    Without `platform` that of this machine is preferred. Raises NotFoundError if none was pulled.
    """
    if not is_image_reference(image):
        return None
    reference = parse_image_reference(image)
    folder = find_image_folder(cluster, output_dir, environ)
    of_it = [
        one
        for one in list_images(folder)
        if one.reference == str(reference) or (reference.digest and one.digest == reference.digest)
    ]
    fits = [one for one in of_it if one.platform == (platform or this_platform())]
    found = fits or ([] if platform else of_it)
    if not found:
        others = f" for {platform}" if platform and of_it else ""
        raise NotFoundError(
            f"{image} is not in {folder}{others}",
            hint=f"pull it once: hpckit image pull {image}, with the cluster=… of the launch",
        )
    return found[0]


def this_platform() -> str:
    """Return the platform of this machine, as registries name it."""
    return name_platform(machine.machine())


def name_platform(name: str) -> str:
    """Return what registries call a machine that calls itself so."""
    return _PLATFORMS.get(name, f"linux/{name or 'unknown'}")


def find_named_images(names: Sequence[str], images: Sequence[PulledImage]) -> list[PulledImage]:
    """Return the images of these names: of a file, a digest or its beginning; raises NotFoundError."""
    found = []
    for name in names:
        digest = name if name.startswith("sha256:") else f"sha256:{name}"
        begun = re.fullmatch(r"sha256:[0-9a-f]{6,64}", digest) is not None
        of_it = [one for one in images if one.name == name or (begun and one.digest.startswith(digest))]
        if not of_it:
            raise NotFoundError(f"there is no image {name!r}", hint="hpckit image ls shows names and digests")
        if len({one.digest for one in of_it}) > 1:
            known = ", ".join(one.name for one in of_it)
            raise UsageError(f"{name!r} means several images: {known}", hint="give more of the digest")
        found += [one for one in of_it if one not in found]
    return found


def remove_image(image: PulledImage) -> None:
    """Remove an image with its record; raises OSError."""
    Path(image.file).unlink(missing_ok=True)
    image.record.unlink(missing_ok=True)
