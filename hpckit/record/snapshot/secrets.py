"""Which files of a project look like secrets, by their place or by what is in them.

Responsible for that judgement; it must not decide what becomes of them. What git tracks is nobody's
secret any more, and is not asked about.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

_FOLDERS = (
    *(".ssh", ".aws", ".azure", ".gnupg", ".kube", ".huggingface", ".kaggle", ".oci"),
    *(".config/gcloud", ".config/gh", ".config/rclone", ".config/hub"),
)
_FILES = (
    *(".netrc", "_netrc", ".git-credentials", ".pypirc", ".npmrc", ".pgpass", ".my.cnf"),
    *(".docker/config.json", ".dockercfg", ".boto", ".s3cfg", ".vault-token", ".databrickscfg"),
    *("huggingface/token", "huggingface/stored_tokens", "kaggle.json", "*.p12", "*.pfx"),
    *(".env", ".env.*", ".envrc"),
)
_EXAMPLES = (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults")

_HEAD_BYTES = 16 * 1024
_KEY = re.compile(
    rb"\A(?:\xef\xbb\xbf)?(?:Bag Attributes.*?^|Key Attributes.*?^|\s*)"
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s*$"
    rb"|\APuTTY-User-Key-File-"
    rb'|\A\s*\{[^}]*"private_key"\s*:\s*"-----BEGIN',
    re.MULTILINE | re.DOTALL,
)
"""A key at the beginning of a file. One that program text quotes is that program's business."""


def is_secret_folder(path: PurePosixPath) -> bool:
    """Whether all that lies in a folder (relative to the project) is taken for secret."""
    return _ends_like(path, _FOLDERS)


def is_secret_file(path: PurePosixPath) -> bool:
    """Whether a file is taken for secret by its name, or by a folder it lies in."""
    if any(is_secret_folder(parent) for parent in path.parents):
        return True
    return _ends_like(path, _FILES) and path.name not in _EXAMPLES


def holds_private_key(path: Path) -> bool:
    """Whether a file begins with a private key; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            return _KEY.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def is_insisted_on(path: PurePosixPath, wanted: list[str]) -> bool:
    """Whether a file or a folder around it is one of those wanted all the same; may be globs."""
    names = [str(path), *(str(parent) for parent in path.parents if parent.name)]
    return any(fnmatchcase(name, pattern.rstrip("/")) for name in names for pattern in wanted)


def _ends_like(path: PurePosixPath, patterns: tuple[str, ...]) -> bool:
    for pattern in patterns:
        length = pattern.count("/") + 1
        if fnmatchcase("/".join(path.parts[-length:]), pattern):
            return True
    return False
