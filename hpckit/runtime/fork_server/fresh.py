"""Tells when a forked rank would differ from a fresh Python, and starts one in its place.

A fork has imported torch already, with the fork server's variables. A rank whose variables, Python
or modules would have made that import another one starts again in the same process, so that forking
changes nothing but the time that a start takes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from hpckit.runtime.signals import NOTICES

_READ_AT_START = (
    *("PYTHON", "LANG", "LC_", "LD_", "GLIBC_", "MALLOC_", "TCMALLOC_", "JEMALLOC_", "MIMALLOC_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_", "ATEN_", "NPY_"),
    *("TORCH", "PYTORCH_", "KINETO_", "C10_", "DISABLE_ADDMM", "USE_"),
)
"""How the variables begin that Python, the C library, torch and what it loads read only once."""
_READ_LATER = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_", "PYTHONPATH")
"""Read when a process group begins; of PYTHONPATH a fork takes its own."""
_STARTS_PYTHON = {"sitecustomize", "usercustomize"}


def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those variables that are read once, by Python or by what `import torch` loads."""
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER)
    }


def search_path(variables: Mapping[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH as Python puts them on its path."""
    named = variables.get("PYTHONPATH", "").split(os.pathsep)
    return [os.path.abspath(name) for name in named if name]  # noqa: PTH100  # as site.py does it


def hides_module(folders: Iterable[str], imported: Iterable[str]) -> bool:
    """Return whether one of these folders has a module that is imported from elsewhere."""
    names = {name.partition(".")[0] for name in imported} | _STARTS_PYTHON
    for folder in folders:
        try:
            found = set(map(_module, os.listdir(folder)))  # noqa: PTH208
        except FileNotFoundError:
            continue
        except OSError:
            return True  # a zip file, or a folder that cannot be read
        if found & names:
            return True
    return False


def _module(entry: str) -> str:
    """Return the module that a file or folder may be; the empty text if it is none."""
    name, _, suffix = entry.partition(".")
    return name if suffix in {"", "py"} or suffix.endswith(("so", "pyc")) else ""


def begin_fresh(python: str, variables: Mapping[str, str], files: Iterable[int]) -> NoReturn:
    """Become the rank that a fresh Python makes of it, with these open files; raises OSError."""
    for file in files:
        os.set_inheritable(file, True)  # noqa: FBT003  # the function's own signature
    for number in (*NOTICES, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(python, rank_words(python), dict(variables))  # noqa: S606  # no shell is the point


def rank_words(python: str) -> list[str]:
    """Return the words that start a rank, or the process that forks ranks."""
    return [python, "-P", "-m", "hpckit.runtime.rank.process"]


def is_executable(python: str) -> bool:
    """Return whether this process runs that Python."""
    return Path(sys.executable) == Path(python)
