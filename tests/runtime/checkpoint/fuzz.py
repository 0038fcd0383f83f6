"""Damage checkpoints and kill saves in every way that comes to mind; count what goes wrong.

`python fuzz.py --damages 1000 --kills 1000 [--seed N]` prints one line of totals and exits 1
unless both counts are zero: *silent* loads (what was loaded is no state that was saved) and *lost*
loads (an intact, committed checkpoint was there and was not loaded, or an older one was). What is
damaged and where a save is killed follows from the seed.
"""

# ruff: noqa: S311  # the seed makes a case come back, no secret hangs on it
from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpckit.runtime.checkpoint import disk, journal
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.errors import NoCheckpointError

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from runtime.checkpoint.shim import Shim

SAVED = (1, 2, 3)
_WORLD_TIMEOUT_S = 60


class Objects:
    """A model, its optimizer and plain values, all of which follow from the step."""

    def __init__(self, step: int) -> None:
        torch.manual_seed(step)
        self.model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model(torch.randn(4, 20)).sum().backward()
        self.optimizer.step()
        self.values = {"step": step, "text": "x" * 400}

    def state_dict(self) -> dict[str, Any]:
        """Return the values."""
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the values."""
        self.values = state

    @property
    def named(self) -> dict[str, Any]:
        """Return what is registered."""
        return {"model": self.model, "optimizer": self.optimizer, "values": self}

    def digest(self) -> str:
        """Return a digest of all bits of the state."""
        digest = hashlib.sha256(repr(self.values).encode())
        for part in (self.model.state_dict(), *self.optimizer.state_dict()["state"].values()):
            for name, one in part.items():
                digest.update(f"{name} {one.dtype} {one.shape}".encode() + one.numpy().tobytes())
        return digest.hexdigest()


@dataclass(slots=True)
class Totals:
    """What the fuzz has seen."""

    cases: int = 0
    loaded: int = 0
    refused: int = 0
    silent: int = 0
    lost: int = 0
    stories: list[str] = field(default_factory=list)

    def judge(self, story: str, seen: tuple[int, str], known: dict[int, str], best: int) -> None:
        """Compare what was loaded (step, digest; step 0: nothing) with the best there was."""
        step, digest = seen
        self.cases += 1
        self.loaded += step > 0
        self.refused += step == 0
        if step and known.get(step) != digest:
            self.silent += 1
            self.stories.append(f"silent: {story}: step {step}")
        elif step < best:
            self.lost += 1
            self.stories.append(f"lost: {story}: step {step} instead of {best}")

    def __str__(self) -> str:
        names = ("cases", "loaded", "refused", "silent", "lost")
        return ", ".join(f"{name} {getattr(self, name)}" for name in names)


def save(folder: Path, step: int, *, epoch: int = 1, wait: bool = True) -> None:
    """Save the objects of a step, as any attempt would."""
    checkpointer = Checkpointer(folder, CheckpointSettings(epoch=epoch, keep=2 if step > 3 else 3))
    checkpointer.save(Objects(step).named, step, step * 10, wait=wait)
    checkpointer.close()


def load(folder: Path) -> tuple[int, str]:
    """Return step and digest of what a new attempt would load; step 0 where there is nothing."""
    objects = Objects(1000)
    checkpointer = Checkpointer(folder, CheckpointSettings(epoch=9))
    try:
        restored = checkpointer.restore(objects.named)
    except NoCheckpointError:
        return 0, ""
    finally:
        checkpointer.close()
    return (restored.step, objects.digest()) if restored else (0, "")


def template(folder: Path) -> dict[int, str]:
    """Save the known steps; return their digests."""
    for step in SAVED:
        save(folder, step)
        entry = next(folder.glob(f"step-*{step}.e*"))
        fate = journal.CheckpointFate.proved if step < 3 else journal.CheckpointFate.attempted
        journal.append_checkpoint_fate(folder / "journal.jsonl", fate, entry.name, epoch=1)
    return {step: Objects(step).digest() for step in (*SAVED, 4)}


# Damages


def flip(path: Path, chance: random.Random) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


def hole(path: Path, chance: random.Random) -> None:
    """Write zeros over a stretch."""
    data = bytearray(path.read_bytes())
    start = chance.randrange(len(data) + 1)
    stretch = data[start : start + chance.choice((1, 64, 512, 4096))]
    data[start : start + len(stretch)] = bytes(len(stretch))
    path.write_bytes(data)


def cut(path: Path, chance: random.Random) -> None:
    """Cut the end off."""
    os.truncate(path, chance.randrange(path.stat().st_size + 1))


def grow(path: Path, chance: random.Random) -> None:
    """Append bytes."""
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.choice((1, 512))))


def delete(path: Path, _: random.Random) -> None:
    """Remove the file."""
    path.unlink()


def swap(path: Path, chance: random.Random) -> None:
    """Put the file of the same name of another checkpoint in its place."""
    others = [one for one in path.parent.parent.glob(f"step-*/{path.name}") if one != path]
    if others:
        shutil.copy(chance.choice(others), path)


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (flip, hole, cut, grow, delete, swap)


def _contents(folder: Path) -> dict[Path, bytes]:
    files = [path for path in folder.glob("step-*/*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def damage_one(source: Path, chance: random.Random, known: dict[int, str], into: Totals) -> None:
    """Damage one to six files of a copy and load it."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(source, Path(scratch, "copy")))
        whole = _contents(copy)
        story = []
        for _ in range(chance.choice((1, 1, 2, 3, 6))):
            files = sorted(path for path in copy.rglob("*") if path.is_file())
            path, damage = chance.choice(files), chance.choice(DAMAGES)
            damage(path, chance)
            story.append(f"{damage.__name__} {path.relative_to(copy)}")
        now = _contents(copy)
        broken = {path.parts[0] for path in whole if now.get(path) != whole[path]}
        intact = [path.parts[0] for path in whole if path.parts[0] not in broken]
        best = max((int(name[5:13]) for name in intact), default=0)
        into.judge("; ".join(story), load(copy), known, best)


# Kills


def _fork(action: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _in_small_writes()
            action()
            code = 0
        except BaseException:  # noqa: BLE001  # a child must never come back into its parent's code
            traceback.print_exc()
        os._exit(code)
    return pid


def _in_small_writes() -> None:
    """Let a save of a few KiB write and flush as often as one of a few hundred MiB does."""
    disk.CHUNK, disk.GATHERED = 2048, 256


def _operations(source: Path, scratch: Path) -> list[int]:
    """Return the numbers of a save's operations, in the order in which they are fatal.

    Everything that is no plain write comes first: there are few of those, and they matter most.
    """
    copy, told = Path(shutil.copytree(source, scratch / "counted")), scratch / "operations"

    def action() -> None:
        shim = Shim(-1, random.Random(0), power_cut=False)
        shim.install()
        save(copy, 4, epoch=2)
        told.write_text(" ".join(shim.done))

    os.waitpid(_fork(action), 0)
    numbered = list(enumerate(told.read_text().split(), start=1))
    writes = [number for number, name in numbered if name == "write"]
    random.Random(0).shuffle(writes)
    return [number for number, name in numbered if name != "write"] + writes


def _worlds(size: int, store: Path, rank: int) -> None:
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)


def kill_one(source: Path, fatal: int, chance: random.Random, case: tuple[int, bool]) -> Path:
    """Save step 4 into a copy with so many ranks, one of which dies; return the copy.

    The folder is of a later attempt than the saved ones, which also makes it clean up.
    """
    size, power_cut = case
    copy = Path(shutil.copytree(source, Path(tempfile.mkdtemp(dir=source.parent), "copy")))
    victim, wait = chance.randrange(size), chance.random() < 0.7

    def action(rank: int) -> None:
        _worlds(size, copy.with_name("store"), rank)
        if rank == victim:
            Shim(fatal, chance, power_cut=power_cut).install()
        with contextlib.suppress(Exception):
            save(copy, 4, epoch=2, wait=wait)

    pids = [_fork(lambda rank=rank: action(rank)) for rank in range(size)]  # type: ignore[misc]
    _reap(pids, victim)
    return copy


def _reap(pids: list[int], victim: int) -> None:
    deadline = time.monotonic() + _WORLD_TIMEOUT_S
    os.waitpid(pids[victim], 0)
    for pid in pids[:victim] + pids[victim + 1 :]:
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                break
            time.sleep(0.005)


def judge_kill(copy: Path, story: str, known: dict[int, str], into: Totals) -> None:
    """Load after a kill: the new step where it was committed, else the one before."""
    committed = [path.parent.name for path in copy.glob("step-*/manifest.json")]
    best = max((int(name[5:13]) for name in committed), default=0)
    into.judge(story, load(copy), known, max(best, 3))
    if len(committed) < 2:
        into.lost += 1
        into.stories.append(f"lost: {story}: {len(committed)} checkpoints left")
    shutil.rmtree(copy.parent)


def fuzz_damages(count: int, seed: int) -> Totals:
    """Damage so many copies."""
    totals = Totals()
    with scratch_template() as (source, known):
        for case in range(count):
            damage_one(source, random.Random(f"{seed}/{case}"), known, totals)
    return totals


def fuzz_kills(count: int, seed: int, *, sizes: tuple[int, ...] = (1,)) -> Totals:
    """Kill so many saves: at every operation in turn, then at every one again."""
    totals = Totals()
    with scratch_template() as (source, known):
        operations = _operations(source, source.parent)
        for case in range(count):
            chance = random.Random(f"{seed}/{case}")
            size = sizes[case % len(sizes)]
            fatal = operations[case // len(sizes) % len(operations)]
            power_cut = chance.random() < 0.5
            copy = kill_one(source, fatal, chance, (size, power_cut))
            judge_kill(copy, f"{size} ranks, operation {fatal}, {power_cut=}", known, totals)
    return totals


@contextlib.contextmanager
def scratch_template() -> Iterator[tuple[Path, dict[int, str]]]:
    """Make the checkpoints that are copied and damaged; yield their folder and digests."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "whole")
        yield source, template(source)


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damages", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    damages = fuzz_damages(options.damages, options.seed)
    kills = fuzz_kills(options.kills, options.seed, sizes=tuple(options.ranks))
    for name, totals in (("damages", damages), ("kills", kills)):
        sys.stdout.write(f"{name}: {totals}\n")
        sys.stdout.writelines(f"  {story}\n" for story in totals.stories)
    return int(any(one.silent or one.lost for one in (damages, kills)))


if __name__ == "__main__":
    sys.exit(main())
