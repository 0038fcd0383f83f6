"""A launch whose records are damaged, value by value, and how verbs answer then."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_world import NOW, Said, verb_said

from hpckit.record.launches import Launch

ANSWERS = {0, 1, 2, 3, 130}
"""Exit codes of docs/reference/cli/index.md; `watch` is left by Ctrl-C as soon as it waits."""

Place = tuple[str, int, tuple[Any, ...]]
"""A value of a record: its file, the line in it, and the way to it."""


def places(folder: Path) -> list[Place]:
    """Return every value of every record of a launch."""
    found: list[Place] = []
    for path in sorted((*folder.rglob("*.json"), *folder.rglob("*.jsonl"))):
        name = str(path.relative_to(folder))
        for number, document in enumerate(documents(path)):
            found += [(name, number, way) for way in ways(document)]
    return found


def documents(path: Path) -> list[Any]:
    """Return what a file holds: one document, or one on each line."""
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines()] if is_lines(path) else [json.loads(text)]


def is_lines(path: Path) -> bool:
    """Whether a file holds a document on each line."""
    return path.suffix == ".jsonl"


def ways(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to a value and to everything in it."""
    yield ()
    inner = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    for key, item in inner:
        yield from ((key, *way) for way in ways(item))


def put(value: Any, way: tuple[Any, ...], other: Any) -> Any:
    """Return a value with another one at the end of a way."""
    if not way:
        return other
    value[way[0]] = put(value[way[0]], way[1:], other)
    return value


def damage(folder: Path, place: Place, other: Any) -> None:
    """Put another value into a record."""
    name, number, way = place
    path = folder / name
    held = documents(path)
    held[number] = put(held[number], way, other)
    path.write_text("".join(json.dumps(one) + "\n" for one in held))


def answer(outputs: Path, words: tuple[str, ...]) -> Said:
    """Run a verb in a folder of launches, and press Ctrl-C when it waits."""

    def leave(_: float) -> None:
        raise KeyboardInterrupt

    environ = {"HPCKIT_OUTPUTS": str(outputs), "PATH": "/nowhere"}
    return verb_said(*words, folder=outputs, environ=environ, now=lambda: NOW, sleep=leave)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A launch to damage, in a folder of launches."""

    outputs: Path
    launch: Launch

    def answers(
        self, place: Place, other: object, verbs: Iterable[tuple[str, ...]]
    ) -> Iterator[tuple[tuple[str, ...], Said]]:
        """Put another value into a fresh copy for each verb, and see that it answers.

        Yields the words, with the launch in the place of `LAUNCH`, and the answer.
        """
        outputs = self.outputs.parent / "damaged"
        for verb in verbs:
            shutil.rmtree(outputs, ignore_errors=True)
            shutil.copytree(self.outputs, outputs)
            damage(outputs / self.launch.id, place, other)
            words = tuple(word.replace("LAUNCH", self.launch.id) for word in verb)
            said = answer(outputs, words)
            assert said.code in ANSWERS, words
            assert "Traceback" not in said.err
            yield words, said
