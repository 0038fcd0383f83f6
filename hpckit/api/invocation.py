"""The surroundings of a call from Python: this process's environment, and notes as log records."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from hpckit.context import Context, current_folder, default_output_dir
from hpckit.errors import HpckitError
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
_WARNING = ("hpckit: warning:", "hpckit: error:")


class _LogStream(io.StringIO):
    """Hands notes to the logger `hpckit`: warnings, which Python shows by itself, and the rest as info."""

    level = logging.INFO

    def write(self, text: str) -> int:
        if text.startswith("hpckit: "):
            self.level = logging.WARNING if text.startswith(_WARNING) else logging.INFO
        _LOG.log(self.level, "%s", text.removeprefix("hpckit: ").rstrip())
        return len(text)


def build_python_context(cwd: Path | str | None = None) -> Context:
    """Return a context in which nothing asks or prints; `cwd` is the project's folder (default: here)."""
    folder = current_folder() if cwd is None else Path(cwd).expanduser().absolute()
    return Context(
        environ=copy_environment(),
        cwd=folder,
        stdout=io.StringIO(),
        stderr=_LogStream(),
        now=lambda: datetime.now(UTC),
        sleep=time.sleep,
    )


def choose_launches_folder(output_dir: Path | str | None, context: Context) -> Path:
    """Return where launches are looked for: as `--output-dir`."""
    if output_dir is None:
        return default_output_dir(context)
    return context.cwd / Path(output_dir).expanduser()


def _name_parameters(text: str) -> str:
    """Return a text with the names that options of the command line have here."""
    for option, parameter in _PARAMETERS.items():
        text = text.replace(option, parameter)
    return text


def _list_texts(value: object, before: str = "") -> Iterator[str]:
    """Yield the texts in what a function was called with, each as the word `key=text` that it stands for."""
    if isinstance(value, str):
        yield before + value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _list_texts(one, f"{key}=")
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _list_texts(one, before)


def explain_errors(function: Callable[Words, Answer]) -> Callable[Words, Answer]:
    """Have a function's HpckitErrors show their hint in a traceback, none of their causes, and no secret."""

    @wraps(function)
    def call(*words: Words.args, **named: Words.kwargs) -> Answer:
        try:
            return function(*words, **named)
        except HpckitError as error:
            error.message, error.hint = map(_name_parameters, (error.message, error.hint))
            known = find_secrets_in_environment(copy_environment())
            given = [*_list_texts(words), *_list_texts(named)]
            error.message, error.hint = (
                mask_message(text, given, known) for text in (error.message, error.hint)
            )
            error.args = (error.message,)
            if error.hint and error.hint not in getattr(error, "__notes__", ()):
                error.add_note(error.hint)
            raise error from None

    return call
