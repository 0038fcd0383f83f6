"""Reads what was frozen of a launch's code and environment; missing or damaged files are empty."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpckit.record.layout import LaunchPaths
from hpckit.record.store import open_plain, read_object

_DIFF_OF = re.compile(r'^diff --git (?:"?a/.*"? )"?b/(.*?)"?$', re.MULTILINE)


def read_code_record(paths: LaunchPaths) -> Mapping[str, Any]:
    """Return code.json; empty if it cannot be read."""
    return read_object(paths.code_record)


def read_environment(paths: LaunchPaths) -> Mapping[str, Any]:
    """Return environment.json; empty if it cannot be read."""
    return read_object(paths.environment)


def changed_files(paths: LaunchPaths) -> tuple[str, ...]:
    """Return the files that differed from the commit, limited to files that git tracked."""
    return tuple(dict.fromkeys(_DIFF_OF.findall(read_code_diff(paths))))


def read_code_diff(paths: LaunchPaths) -> str:
    """Return the diff from the commit; empty if there was none or it cannot be read."""
    try:
        with open_plain(paths.code_diff) as file:
            return file.read().decode("utf-8", "surrogateescape")
    except OSError:
        return ""
