"""The surroundings of a call from Python: this process's environment, and notes as log records."""

from __future__ import annotations

import io
import logging
import time
from datetime import UTC, datetime
from pathlib import Path

from hpckit.context import Context, default_output_dir
from hpckit.runtime.environ import copy_environment

_LOG = logging.getLogger("hpckit")
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
    folder = Path.cwd() if cwd is None else Path(cwd).expanduser().absolute()
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
