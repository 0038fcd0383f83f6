"""Recognises files of a project that look like secrets, by their place or their content.

Files that git tracks are no longer secret, and are not checked.
"""

from __future__ import annotations

import os
import re
import stat
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from hpckit.patterns import lazy_pattern

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
_KEY = lazy_pattern(
    rb"\A(?:\xef\xbb\xbf)?(?:Bag Attributes.*?^|Key Attributes.*?^|\s*)"
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s*$"
    rb"|\APuTTY-User-Key-File-"
    rb'|\A\s*\{[^}]*"private_key"\s*:\s*"-----BEGIN',
    re.MULTILINE | re.DOTALL,
)
"""A key at the beginning of a file. Keys quoted in program text do not count."""


def is_secret_folder(path: PurePosixPath) -> bool:
    """Return whether everything in a folder (relative to the project) counts as secret."""
    return _matches_path_pattern(path, _FOLDERS)


def is_secret_file(path: PurePosixPath) -> bool:
    """Return whether a file counts as secret by its name, or by a folder that contains it."""
    if any(is_secret_folder(parent) for parent in path.parents):
        return True
    return _matches_path_pattern(path, _FILES) and path.name not in _EXAMPLES


def holds_private_key(path: Path) -> bool:
    """Return whether a regular file begins with a private key; False if it cannot be read."""
    try:
        # Opening a FIFO would wait for a writer.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        regular = stat.S_ISREG(os.fstat(file).st_mode)
        return regular and _KEY.match(os.read(file, _HEAD_BYTES)) is not None
    except OSError:
        return False
    finally:
        os.close(file)


def is_secret_explicitly_included(path: PurePosixPath, wanted: list[str]) -> bool:
    """Return whether a file, or a folder around it, matches one of the `wanted` globs."""
    names = [str(path), *(str(parent) for parent in path.parents if parent.name)]
    return any(fnmatchcase(name, pattern.rstrip("/")) for name in names for pattern in wanted)


def _matches_path_pattern(path: PurePosixPath, patterns: tuple[str, ...]) -> bool:
    for pattern in patterns:
        length = pattern.count("/") + 1
        if fnmatchcase("/".join(path.parts[-length:]), pattern):
            return True
    return False
