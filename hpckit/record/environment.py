"""What a launch ran with: Python, packages, modules, host.

Responsible for describing, from a given mapping and this interpreter; it must not copy the
environment: variables hold passwords and tokens.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Mapping

from hpckit.record.process import this_host

VERSION = 1
_DISTRIBUTION = "hpckit-slurm"


def capture(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the content of environment.json."""
    packages = _packages()
    return {
        "v": VERSION,
        "hpckit": packages.get(_DISTRIBUTION),
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "packages": packages,
        "modules": [name for name in environ.get("LOADEDMODULES", "").split(":") if name],
        "host": this_host(),
        "platform": platform.platform(),
    }


def _packages() -> dict[str, str]:
    """Return name and version of what is installed; the first found is the one imported."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name, distribution.version)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))
