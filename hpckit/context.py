"""One invocation's world: environment, clock, working directory and streams, as one value.

Tests make one of their own. It knows no verb, no option and no terminal library.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TextIO

from hpckit.model.plain import to_plain
from hpckit.report.escape import escaped, escaped_json

_LONG = 2**20

Tell = Callable[[int, int], None]
"""Takes how many steps are done, of how many."""


def random_token() -> str:
    """Return what keeps two launches of the same second apart."""
    return secrets.token_hex(3)


def read_answer() -> str:
    """Return a line that somebody typed, empty at the end of the input."""
    return "" if sys.stdin is None else sys.stdin.readline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The world of one invocation: `now` gives aware UTC, `sleep` takes seconds.

    `answer` waits for a line; ask only if a person watches. `meter` draws how far a long step
    is; without one, nothing is drawn.
    """

    environ: Mapping[str, str]
    cwd: Path
    stdout: TextIO
    stderr: TextIO
    now: Callable[[], datetime]
    sleep: Callable[[float], None]
    token: Callable[[], str] = random_token
    heard: dict[tuple[str, ...], str] = field(default_factory=dict)
    answer: Callable[[], str] = read_answer
    meter: Callable[[str, Context], AbstractContextManager[Tell]] | None = None

    @property
    def terminal(self) -> bool:
        """Whether a person is watching: live views are for terminals, plain lines for the rest."""
        return self.stdout.isatty()

    def progress(self, what: str, *, quiet: bool = False) -> AbstractContextManager[Tell]:
        """Give what takes the progress of `what`; nothing is drawn if `quiet`, or for programs."""
        if quiet or self.meter is None or not self.stderr.isatty():
            return _undrawn()
        return self.meter(what, self)

    def say(self, text: str) -> None:
        """Write a line to standard output; control characters in it are shown, not obeyed."""
        self.stdout.write(escaped(text) + "\n")
        self.stdout.flush()

    def note(self, text: str) -> None:
        """Write a remark to standard error, so that standard output stays what was asked for."""
        self.stderr.write(f"hpckit: {escaped(text)}\n")
        self.stderr.flush()

    def note_more(self, text: str) -> None:
        """Write what belongs to the remark before, indented."""
        for line in text.splitlines():
            self.stderr.write(f"  {escaped(line)}\n")
        self.stderr.flush()

    def say_json(self, value: object) -> None:
        """Write one JSON document to standard output: in lines for people, unless it is long."""
        plain = to_plain(value)
        text = self.json_line(plain)
        # Indenting is not done in C: of ten thousand runs it takes seconds.
        self.say(self._json(plain, indent=2) if len(text) < _LONG else text)

    def json_line(self, value: object) -> str:
        """Return JSON in one line, in characters that standard output has."""
        return self._json(value, indent=None)

    def _json(self, value: object, *, indent: int | None) -> str:
        # What an encoding lacks is escaped by Python's rules otherwise, which are not JSON's.
        whole = (self.stdout.encoding or "utf-8").lower().startswith("utf")
        return escaped_json(json.dumps(value, indent=indent, ensure_ascii=not whole))


@contextmanager
def _undrawn() -> Iterator[Tell]:
    yield lambda _done, _total: None


def default_output_dir(context: Context) -> Path:
    """Return the absolute folder of launches without an option; an empty variable is unset."""
    return context.cwd / Path(context.environ.get("HPCKIT_OUTPUTS") or "outputs").expanduser()


def login_name() -> str:
    """Return the login name, by which the accounting knows this user; LOGNAME may say anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
