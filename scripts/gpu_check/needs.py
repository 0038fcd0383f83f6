"""What has to be installed, by name and version, told before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import metadata

NEEDED = (
    *("argcomplete>=3.1,<4", "cloudpickle>=2.2,<4", "hydra-core>=1.3.2,<1.5", "omegaconf>=2.3,<2.4"),
    *("antlr4-python3-runtime>=4.9,<4.10", "packaging", "jinja2>=3.1", "markupsafe"),
    *("nvidia-ml-py>=13.580", "pyyaml>=6", "rich>=13.7", "markdown-it-py"),
    *("pygments", "submitit>=1.5.2,<2", "cloudpickle", "typing-extensions", "numpy>=1.26"),
    "torch>=2.9,<3",
)
"""hpckit's own dependencies, and what these need."""
_SOURCE_ONLY = "antlr4-python3-runtime"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(.*)")
_BOUND = re.compile(r"(>=|<)([\d.]+)")


def problems(version: Callable[[str], str] = metadata.version) -> list[tuple[str, str]]:
    """Return requirements that are not met, each with what is wrong.

    Parameter `version` returns that of a distribution, or raises PackageNotFoundError.
    """
    return list(_problems(version))


def _problems(version: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    for requirement in NEEDED:
        found = _REQUIREMENT.fullmatch(requirement)
        assert found is not None  # noqa: S101  # they stand above
        try:
            installed = version(found[1])
        except metadata.PackageNotFoundError:
            yield requirement, "is missing"
            continue
        bounds = [(word, _numbers(text)) for word, text in _BOUND.findall(found[2])]
        if not all(_holds(_numbers(installed), word, bound) for word, bound in bounds):
            yield requirement, f"{installed} is installed"


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def _holds(installed: tuple[int, ...], word: str, bound: tuple[int, ...]) -> bool:
    return installed >= bound if word == ">=" else installed < bound


def needs_text(missing: list[tuple[str, str]], python: str) -> str:
    """Return what is missing, and the lines that fetch it on a machine with a network.

    Parameter `python` is the version of the Python that will run, such as 3.12.
    """
    if not missing:
        return "all packages that the check needs are installed\n"
    lines = [f"{requirement}: {said}" for requirement, said in missing]
    wheels = [f"'{one}'" for one, _ in missing if not one.startswith((_SOURCE_ONLY, "torch"))]
    lines += ["", "on a machine with a network:"]
    if wheels:
        lines.append(
            f"  python3 -m pip download --no-deps --only-binary=:all: --python-version {python} "
            f"--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d .whl "
            f"{' '.join(wheels)}"
        )
    if any(one.startswith(_SOURCE_ONLY) for one, _ in missing):
        lines.append(f"  python3 -m pip wheel --no-deps -w .whl '{_SOURCE_ONLY}==4.9.*'")
    lines += [
        "here, with the folder .whl:",
        "  python3 -m pip install --no-index --no-deps --target /tmp/site .whl/*.whl",
        "  export PYTHONPATH=/tmp/site",
    ]
    return "\n".join(lines) + "\n"
