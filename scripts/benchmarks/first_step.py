"""From the start of a job on its nodes to the first step: by where Python and torch come from.

Two nodes of the sandbox with a rank each; all ways take turns. An image has another torch than this
Python, so both have a bare way to stand beside: the image's torch by this machine's Python, and a
virtual environment with this Python's torch. Files are in this machine's cache, as on a node that has
run the like before.
"""

from __future__ import annotations

import statistics
import sys
from datetime import datetime
from pathlib import Path

from benchmarks.commands import need_sandbox, run, slurm, wait_until
from benchmarks.imports import make_environment
from benchmarks.scene import Scene

TURNS = 3
_ROOT = Path(__file__).resolve().parents[2]


def bench_first_step(folder: Path, image: Path | None) -> None:
    """Compare containers and a staged environment with the same torch as it lies on the disk."""
    root, library = _find_torch(image)
    need_sandbox()
    bases = {**_ways_of_image(folder, root, library), **_ways_of_environment(folder)}
    took: dict[str, list[tuple[float, float]]] = {way: [] for ways in bases.values() for way in ways}
    for turn in range(TURNS + 1):  # the first fills caches, and packs the environment
        for number, (way, words) in enumerate(way for ways in bases.values() for way in ways.items()):
            found = _measure(Scene(folder=folder / f"{number}-{turn}", steps=2, step_s=0), words)
            took[way] += [found] if turn else []
    for base, ways in bases.items():
        print(f"{base:42} agents there   first step (spread)     ratio of each turn, median")
        bare = [first for _, first in took[next(iter(ways))]]
        for way in ways:
            joined, first = zip(*took[way], strict=True)
            ratio = statistics.median(one / other for one, other in zip(first, bare, strict=True))
            spread = f"({min(first):.1f} to {max(first):.1f})"
            middle = f"{statistics.median(joined):10.2f} s  {statistics.median(first):9.2f} s"
            print(f"{way:42} {middle} {spread:15} {ratio:6.2f}", flush=True)


def _find_torch(image: Path | None) -> tuple[Path, Path]:
    """Return the image and its folder with torch; ends the benchmark if there is none."""
    if image and (found := next(image.glob("usr/*/lib/python3*/dist-packages/torch"), None)):
        return image.resolve(), found.parent
    version = "{}.{}".format(*sys.version_info[:2])
    sys.exit(
        "first-step needs --image FOLDER: the root of an image with torch for Python "
        f"{version}, in FOLDER/usr/local/lib/python{version}/dist-packages"
    )


def _ways_of_image(folder: Path, image: Path, library: Path) -> dict[str, dict[str, list[str]]]:
    """Return the ways to start the torch of an image."""
    file = folder / "image.sqsh"
    run(
        [
            "mksquashfs",
            str(image),
            str(file),
            "-comp",
            "zstd",
            "-Xcompression-level",
            "3",
            "-noappend",
            "-quiet",
            "-no-progress",
        ]
    )
    apptainer = ["container=apptainer", "container.options=[--userns]"]
    ways = {
        "no container": [f"+cluster.env.PYTHONPATH={library}"],
        "apptainer, a folder": [*apptainer, f"container.image={image}"],
        "apptainer, a SquashFS file": [*apptainer, f"container.image={file}"],
    }
    return {f"torch {_find_version(library)}, the image's": ways}


def _ways_of_environment(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Return the ways to start the torch of an environment."""
    python = Path(make_environment(folder / "shared", "torch", "numpy"))
    (site,) = python.parents[1].glob("lib/python3*/site-packages")
    (site / "hpckit.pth").write_text(f"{_ROOT}\n")
    where = [f"cluster.python={python}"]
    staged = [*where, "+data=stage", f"data.dir={folder / 'nodes'}", "data.margin_gb=0"]
    ways = {
        "an environment, where it is": where,
        "staged as squashfs, copied each time": [*staged, "data.environment=squashfs"],
        "staged as squashfs, found on the node": [*staged, "data.environment=squashfs", "data.keep=cache"],
        "staged as tar, copied each time": [*staged, "data.environment=tar"],
    }
    return {f"torch {_find_version(site)}, an environment's": ways}


def _find_version(packages: Path) -> str:
    (found,) = packages.glob("torch-*.dist-info")
    return found.name.removeprefix("torch-").removesuffix(".dist-info")


def _measure(scene: Scene, words: list[str]) -> tuple[float, float]:
    """Return the seconds until all agents were there, and until the first step began."""
    scene.prepare().launch("cluster=sandbox", "resources.nodes=2", "resources.tasks_per_node=1", *words)
    wait_until(lambda: scene.events("attempt_ended"), 300)
    if not (reached := scene.events("step_reached")):
        sys.exit(f"{' '.join(words)}: no step; see {scene.folder}: {scene.status()}")
    wait_until(lambda: not slurm("squeue", "-h"), 60)
    (started,), joined = scene.events("attempt_started"), scene.events("agent_joined")
    begun, there, first = (datetime.fromisoformat(event["at"]) for event in (started, joined[-1], reached[0]))
    return (there - begun).total_seconds(), (first - begun).total_seconds()
