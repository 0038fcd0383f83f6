"""The environment of one invocation: variables, clock, working directory and streams.

Tests create their own. It knows no verb, no option and no terminal library.
"""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TextIO

from hpckit.errors import UsageError
from hpckit.model.plain import replace_nan_with_null, to_plain
from hpckit.report.escape import escape_controls, escape_json
from hpckit.values import dataclass, field

NO_LOCAL = "HPCKIT_NO_LOCAL"
"""Set on login nodes where no runs may be started as processes."""
_LONG = 2**20

Tell = Callable[[int, int], None]
"""Called with the number of steps done and the total."""


def random_launch_token() -> str:
    """Return a token that distinguishes two launches of the same second."""
    return os.urandom(3).hex()


def read_line_from_stdin() -> str:
    """Return a line of standard input, empty at the end of the input."""
    return "" if sys.stdin is None else sys.stdin.readline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The environment of one invocation: `now` gives aware UTC, `sleep` takes seconds.

    `answer` waits for a line; ask only if a person watches. `meter` draws the progress of a long
    step; without one, nothing is drawn. `output_open` is whether the process began with a standard
    output; if not, what is written there is lost.
    """

    environ: Mapping[str, str]
    cwd: Path
    stdout: TextIO
    stderr: TextIO
    now: Callable[[], datetime]
    sleep: Callable[[float], None]
    token: Callable[[], str] = random_launch_token
    heard: dict[tuple[str, ...], Callable[[], str]] = field(default_factory=dict)
    answer: Callable[[], str] = read_line_from_stdin
    meter: Callable[[str, Context], AbstractContextManager[Tell]] | None = None
    output_open: bool = True

    @property
    def has_terminal(self) -> bool:
        """Whether a person is watching: live views are for terminals, plain lines for the rest."""
        return self.stdout.isatty()

    def show_progress(self, what: str, *, quiet: bool = False) -> AbstractContextManager[Tell]:
        """Return a receiver for the progress of `what`; it may draw nothing.

        It draws nothing if `quiet`, or if standard error is not a terminal.
        """
        if quiet or self.meter is None or not self.stderr.isatty():
            return _draw_no_progress()
        return self.meter(what, self)

    def say(self, text: str) -> None:
        """Write a line to standard output; control characters in it are shown, not interpreted."""
        self.stdout.write(escape_controls(text) + "\n")
        self.stdout.flush()

    def note(self, text: str) -> None:
        """Write a note to standard error, so that standard output holds only what was asked for."""
        self.stderr.write(f"hpckit: {escape_controls(text)}\n")
        self.stderr.flush()

    def note_more(self, text: str) -> None:
        """Write further lines of the previous note, indented."""
        for line in text.splitlines():
            self.stderr.write(f"  {escape_controls(line)}\n")
        self.stderr.flush()

    def say_json(self, value: object) -> None:
        """Write one JSON document to standard output, indented unless it is long."""
        plain = to_plain(value)
        text = self.json_line(plain)
        # Python's json indents without its C code: ten thousand runs take seconds.
        self.say(self._format_json(plain, indent=2) if len(text) < _LONG else text)

    def json_line(self, value: object) -> str:
        """Return JSON in one line, in characters that standard output can encode.

        JSON has neither NaN nor infinite numbers: null stands for them.
        """
        return self._format_json(value, indent=None)

    def _format_json(self, value: object, *, indent: int | None) -> str:
        # Python would otherwise escape characters that the encoding lacks in its own way, not
        # JSON's.
        whole = (self.stdout.encoding or "utf-8").lower().startswith("utf")
        write = partial(json.dumps, indent=indent, ensure_ascii=not whole, allow_nan=False)
        try:
            return escape_json(write(value))
        except ValueError:  # hardly ever: not looking at each number saves seconds
            return escape_json(write(replace_nan_with_null(value)))


@contextmanager
def _draw_no_progress() -> Iterator[Tell]:
    yield lambda _done, _total: None


def default_output_dir(context: Context) -> Path:
    """Return the absolute default folder of launches; an empty variable counts as unset."""
    return context.cwd / Path(context.environ.get("HPCKIT_OUTPUTS") or "outputs").expanduser()


def current_folder() -> Path:
    """Return the folder this process works in; raises UsageError if it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder has been removed", hint="change to another one: cd") from None


def login_name() -> str:
    """Return the login name that the accounting knows this user by; LOGNAME may hold anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
