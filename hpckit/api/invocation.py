"""The surroundings of a call from Python: this process's environment, and notes as log records."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from hpckit.context import Context, current_folder
from hpckit.errors import HpckitError
from hpckit.model.plain import iterate_config_strings
from hpckit.planning.secrecy import find_secrets_in_environment, mask_message
from hpckit.runtime.environ import copy_environment

Words = ParamSpec("Words")
Answer = TypeVar("Answer")
_LOG = logging.getLogger("hpckit")
_PARAMETERS = {
    "-m (--multirun)": "multirun=True",
    "Add -m": "Give multirun=True",
    "--changed-code": "changed_code=True",
    "--any-code": "any_code=True",
    "--auto-resume": "auto_resume=True",
    "--no-check": "check=False",
    "--rerun": "rerun=True",
    "--config-dir": "config_dir",
    "--config-name": "config_name",
    "--output-dir": "output_dir",
}


class _LogStream(io.StringIO):
    """Hands notes to the logger `hpckit`: warnings, which Python shows by itself, and the rest as info."""

    level = logging.INFO

    def write(self, text: str) -> int:
        if text.startswith("hpckit: "):
            warns = text.startswith(("hpckit: warning:", "hpckit: error:"))
            self.level = logging.WARNING if warns else logging.INFO
        _LOG.log(self.level, "%s", text.removeprefix("hpckit: ").rstrip())
        return len(text)


def build_python_context(cwd: Path | str | None = None) -> Context:
    """Return a context in which nothing asks or prints; `cwd` is the project's folder (default: here)."""
    return Context(
        environ=copy_environment(),
        cwd=current_folder() if cwd is None else Path(cwd).expanduser().absolute(),
        stdout=io.StringIO(),
        stderr=_LogStream(),
        now=lambda: datetime.now(UTC),
        sleep=time.sleep,
    )


def _name_parameters(text: str) -> str:
    """Return a text with the names that options of the command line have here."""
    for option, parameter in _PARAMETERS.items():
        text = text.replace(option, parameter)
    return text


def explain_errors(function: Callable[Words, Answer]) -> Callable[Words, Answer]:
    """Have a function's HpckitErrors show their hint in a traceback, none of their causes, and no secret."""

    @wraps(function)
    def call(*words: Words.args, **named: Words.kwargs) -> Answer:
        try:
            return function(*words, **named)
        except HpckitError as error:
            known, given = find_secrets_in_environment(copy_environment()), list[str]()
            with suppress(RecursionError):  # of a mapping that contains itself
                for keys, text in iterate_config_strings([words, named, [*named.values()]]):
                    given.append(f"{'.'.join(keys)}={text}" if keys else text)
            error.message, error.hint = (
                mask_message(_name_parameters(text), given, known) for text in (error.message, error.hint)
            )
            error.args = (error.message,)
            if error.hint and error.hint not in getattr(error, "__notes__", ()):
                error.add_note(error.hint)
            raise error from None

    return call
