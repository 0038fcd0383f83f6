"""Whether the settings of notices are consistent. Pure."""

from __future__ import annotations

from hpckit.errors import ConfigError
from hpckit.model.launch import LaunchConfig
from hpckit.model.outside.notices import VARIABLE


def check_notify(settings: LaunchConfig) -> None:
    """Raise ConfigError for values that cannot be used."""
    for key, variables in (("env", settings.env), ("cluster.env", settings.cluster.env)):
        if VARIABLE in variables:
            raise ConfigError(
                f"{key}.{VARIABLE} is set, but hpckit sends notices, not the ranks",
                hint=f"export {VARIABLE} in the shell that launches, or name a private file: "
                "notify.file=~/.config/hpckit/notify",
            )
    path = settings.notify.file
    if path is not None and not path.startswith(("/", "~/")):
        raise ConfigError(
            f"notify.file is {path!r}; it has to begin with / or ~/, as nodes read it, too",
            hint="for example notify.file=~/.config/hpckit/notify, outside the project",
        )
