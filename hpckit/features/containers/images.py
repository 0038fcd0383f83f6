"""Files of pulled images: one for each reference, digest and platform, with a record as its neighbour.

An image counts only if it and its record are owned by you or root, and writable by no one else.
"""

from __future__ import annotations

import os
import re
import stat
import string
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpckit.errors import NotFoundError, UsageError
from hpckit.features.containers.digests import name_platform
from hpckit.features.containers.registry import parse_image_reference
from hpckit.model.launch import Cluster
from hpckit.model.plain import from_plain
from hpckit.record.ownership import explain_replaceable_folder, explain_untrusted_data, read_path_status
from hpckit.record.store import read_json
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledImage:
    """An image as its record says: `sha256` is the file's, `digest` the registry's, `partition` a job's."""

    file: str
    reference: str
    digest: str
    sha256: str
    platform: str
    bytes: int
    pulled_at: datetime
    tool: str
    partition: str | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return Path(self.file).name

    @property
    def record(self) -> Path:
        """The file with what this says."""
        return Path(f"{self.file}.json")


def find_image_folder(cluster: Cluster, output_dir: Path, environ: Mapping[str, str]) -> Path:
    """Return the folder of pulled images; raises UsageError unless nodes can know it by this name."""
    if cluster.image_dir is None:
        return output_dir / "images"
    text = string.Template(cluster.image_dir).safe_substitute(environ)
    if not text.startswith(("/", "~/")) or "$" in text:
        message = f"cluster.image_dir={cluster.image_dir} is {text}, which is no absolute path"
        raise UsageError(message, hint="for example: cluster.image_dir=/shared/$USER/images")
    return Path(text).expanduser()


def list_images(folder: Path, warn: Callable[[str], object] = lambda _: None) -> list[PulledImage]:
    """Return the images in a folder, newest first; `warn` is told of those that do not count, and why.

    Raises UsageError if everybody may replace files in it.
    """
    if folder.is_dir() and explain_replaceable_folder(read_path_status(folder.resolve())) is not None:
        hint = f"chmod o-w {folder}, or set cluster.image_dir"
        raise UsageError(f"everybody can replace images in {folder}", hint=hint)
    found = []
    for record in sorted(folder.glob("*.json")):
        file = record.with_suffix("")
        try:
            for place in (file, record):
                check_trusted_file(place)
            known = from_plain(PulledImage, {**read_json(record), "file": str(file)})
            if (size := file.stat().st_size) != known.bytes:
                raise ValueError(f"it has {size} bytes of {known.bytes}")  # noqa: TRY301
        except FileNotFoundError:  # a record is written before its image
            continue
        except (OSError, ValueError, TypeError) as error:
            warn(f"{file} does not count as an image: {error}")
        else:
            found.append(known)
    return sorted(found, key=lambda one: one.pulled_at, reverse=True)


def check_trusted_file(path: Path) -> None:
    """Raise OSError or ValueError for what another user may have written, and for links."""
    seen = read_path_status(path)
    if not stat.S_ISREG(seen.mode):
        raise ValueError(f"{path.name} is not a regular file")
    if (reason := explain_untrusted_data(seen, os.getuid())) is not None:
        raise ValueError(f"{reason.reason}; it has to be owned by you or root, and writable by no one else")


def resolve_image(
    image: str, suffix: str, cluster: Cluster, output_dir: Path, environ: Mapping[str, str]
) -> PulledImage:
    """Return a reference's newest pulled file, if possible of this platform and suffix; raises UsageError."""
    reference = parse_image_reference(image)
    folder = find_image_folder(cluster, output_dir, environ)
    wanted = {str(reference), reference.digest}
    of_it = [one for one in list_images(folder) if {one.reference, one.digest} & wanted]
    if not of_it:
        hint = f"pull it once: hpckit image pull {image}, with the cluster=… of the launch"
        raise NotFoundError(f"{image} is not in {folder}", hint=hint)
    return min(of_it, key=lambda one: (one.platform != name_platform(), not one.file.endswith(suffix)))


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
