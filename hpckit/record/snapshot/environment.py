"""Describes what a launch runs with: Python, packages, modules, host.

It must not copy environment variables: they contain passwords and tokens.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.model.finding import Finding, build_error_finding
from hpckit.patterns import lazy_pattern
from hpckit.record.process import this_host

VERSION = 1
_DISTRIBUTION = "hpckit-slurm"
_DRIVER = Path("/proc/driver/nvidia/version")
_DRIVER_VERSION = lazy_pattern(r"\b\d{3}\.\d+(\.\d+)?\b")
_METADATA = (".dist-info", ".egg-info")
_METADATA_FILES = ("METADATA", "PKG-INFO", "")
"""Where the metadata of a package is; an old egg is itself the file."""
_HEAD_BYTES = 4096
_HEADER = lazy_pattern(r"^(Name|Version):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_PATIENCE_S = 60.0
_SHELL_LINE = lazy_pattern(r".*?: line (\d+): (.*)")
_KNOWN = ("python3", "python", "bash", "torchrun", "accelerate", "deepspeed", "Rscript", "julia")
_ALIKE = 0.8
_ACCELERATORS = ("cuda", "hip", "xpu")
_ASSIGNED = lazy_pattern(r"^(\w+)(?:: *[^=\n]*)? *= *(\S+)[ \t]*(?:#.*)?$", re.MULTILINE)
"""A name, perhaps annotated, and the constant that it is assigned."""
_ASK = """\
import json, os
from hpckit.record.snapshot.environment import capture_environment
print(json.dumps(capture_environment(os.environ)))
"""


def capture_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the content of environment.json."""
    packages, system = _list_installed_packages(), os.uname()
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    return {
        "v": VERSION,
        "hpckit": packages.get(_DISTRIBUTION),
        "python": {"version": sys.version.partition(" ")[0], "executable": sys.executable},
        "packages": packages,
        "modules": [name for name in environ.get("LOADEDMODULES", "").split(":") if name],
        "host": this_host(),
        "platform": " ".join(filter(None, (system.sysname, system.release, system.machine, libc))),
        "driver": _read_nvidia_driver_version(),
    }


def find_setup_line_syntax_error(lines: Sequence[str]) -> Iterator[Finding]:
    """Yield an error if bash cannot read the lines of `cluster.setup`; none of them is run."""
    bash = shutil.which("bash")
    if not lines or bash is None:
        return
    done = subprocess.run(
        [bash, "-n", "-c", "\n".join(lines)],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    if done.returncode:
        said = _SHELL_LINE.match(done.stderr)
        number = min(int(said[1]) if said else 1, len(lines))
        yield build_error_finding(
            f"cluster.setup[{number - 1}]",
            lines[number - 1],
            f"bash cannot read line {number} of cluster.setup, {lines[number - 1]!r}: "
            f"{said[2] if said else done.stderr.strip()}",
            "close open quotes and brackets, and quote bash's special characters",
        )


def find_program_in_environment(program: str, environ: Mapping[str, str]) -> str | None:
    """Return a program of the activated virtual or conda environment; None if it has none."""
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    return shutil.which(program, path=f"{active}/bin") if active and "/" not in program else None


def suggest_for_misspelled_program(
    program: str, which: Callable[[str], str | None]
) -> tuple[str | None, str]:
    """Return the known program here that a misspelled name means, if any, and what to do.

    Not `python3.12` or `ipython` for python: nodes may have programs that this machine lacks.
    """
    known = () if program.startswith(_KNOWN) else _KNOWN
    for near in difflib.get_close_matches(program, known, n=len(_KNOWN), cutoff=0.75):
        same = sorted(near) == sorted(program)
        alike = same or difflib.SequenceMatcher(a=near, b=program).ratio() >= _ALIKE
        if alike and program[0] == near[0] and which(near):
            return near, f"did you mean {near}? A program that only nodes have: give its path"
    return None, (
        "look for a typing mistake; on the nodes it has to be on PATH (cluster.modules, "
        "cluster.setup, cluster.env)"
    )


def capture_python_environment(python: str, environ: Mapping[str, str]) -> dict[str, object] | None:
    """Return the result of `capture_environment` in another Python; None if that fails."""
    if python == sys.executable:
        return capture_environment(environ)
    answer = ask_python(python, _ASK, environ)
    return answer if isinstance(answer, dict) else None


def ask_python(python: str, program: str, environ: Mapping[str, str], given: object = None) -> Any:
    """Return what a program prints in another Python, None if that fails; both speak JSON."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", program],
            env=dict(environ),
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=True,
            timeout=_PATIENCE_S,
        )
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


EnvironmentDifference = tuple[str, str | None, str | None]
"""What differs between two environments, and its values; None is not recorded, or not there."""


def format_environment_change(name: str, old: str | None, new: str | None) -> str:
    """Return a difference as a phrase about then and now."""
    if old is None:
        return f"{name}: {new}, but no value was recorded"
    return f"{name}: was {old}, {'but is not here' if new is None else f'is {new}'}"


def list_environment_differences(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[EnvironmentDifference, ...]:
    """Return the differences between two environments; empty if there are none."""
    return (
        *list_text_differences(_flatten_environment(old), _flatten_environment(new)),
        *list_text_differences(old.get("packages") or {}, new.get("packages") or {}, "package "),
    )


def _flatten_environment(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return everything but packages, by its usual name; unknown values are left out."""
    python = environment.get("python") or {}
    modules = environment.get("modules")
    named = {
        "python": python.get("version"),
        "python at": python.get("executable"),
        "modules": None if modules is None else " ".join(modules) or "(none)",
        "host": environment.get("host"),
        "platform": environment.get("platform"),
        "driver": environment.get("driver"),
    }
    return {name: str(value) for name, value in named.items() if value is not None}


def list_text_differences(
    old: Mapping[str, str], new: Mapping[str, str], what: str = ""
) -> Iterator[EnvironmentDifference]:
    """Yield the names whose text differs, or that one side lacks, each after `what`."""
    for name in sorted(old.keys() | new.keys(), key=str.lower):
        if old.get(name) != new.get(name):
            yield f"{what}{name}", old.get(name), new.get(name)


def _read_nvidia_driver_version() -> str | None:
    try:
        text = _DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _DRIVER_VERSION.search(text)
    return found[0] if found else None


def _list_installed_packages() -> dict[str, str]:
    """Return name and version of installed packages; the first one found is the one imported.

    As importlib.metadata does, but that reads whole files, and its import costs 7 ms a launch.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            with os.scandir(folder or ".") as entries:
                all_metadata = [entry.path for entry in entries if entry.name.endswith(_METADATA)]
        except OSError:  # not there, or a zip file
            continue
        for metadata in all_metadata:
            headers = _read_metadata_headers(Path(metadata))
            if headers.get("Name"):
                found.setdefault(headers["Name"], headers.get("Version", ""))
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _read_metadata_headers(metadata: Path) -> dict[str, str]:
    for file in _METADATA_FILES:
        try:
            with (metadata / file).open("rb") as mail:
                head = mail.read(_HEAD_BYTES).decode("utf-8", "replace").replace("\r", "")
        except OSError:
            continue
        return dict(reversed(_HEADER.findall(head.partition("\n\n")[0])))
    return {}


def find_cpu_only_torch(folder: Path | None = None) -> str | None:
    """Return the version of a PyTorch that cannot use GPUs; None if it can, or if it is not known.

    `folder` is that of the package; the default is that of this Python.
    """
    folder = folder or _find_torch_folder()
    if folder is None:
        return None
    try:
        values = dict(_ASSIGNED.findall((folder / "version.py").read_text("utf-8")))
    except (OSError, ValueError):
        return None
    # A version file without CUDA information has an unknown format.
    if "cuda" not in values or any(values.get(name, "None") != "None" for name in _ACCELERATORS):
        return None
    return values.get("__version__", "").strip("'\"") or "unknown version"


def _find_torch_folder() -> Path | None:
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
