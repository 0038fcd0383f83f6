"""Reads and writes the only file of a launch folder that holds secrets: variables for its ranks.

No other file in the folder has these values, so the folder can be shared once this file is removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import MASK, from_plain, to_plain
from hpckit.model.plan import SecretVariables
from hpckit.record.frozen import unreadable_file_error
from hpckit.record.layout import LaunchPaths
from hpckit.record.store import read_json, write_json

VERSION = 1


def write_secrets(paths: LaunchPaths, runs: Sequence[SecretVariables]) -> None:
    """Freeze the secrets of all runs, in order; writes no file if there are none.

    Raises OSError.
    """
    if not any(runs):
        return
    most = runs[0]
    others = {str(index): to_plain(one) for index, one in enumerate(runs) if one != most}
    write_json(paths.secrets, {"v": VERSION, "all": to_plain(most), "runs": others})


def read_secrets(paths: LaunchPaths, index: int, settings: LaunchConfig) -> SecretVariables:
    """Return the secrets of a run; raises FrozenFolderError if one that it needs is missing."""
    wanted = {
        "env": [name for name, value in settings.env.items() if value == MASK],
        "cluster.env": [name for name, value in settings.cluster.env.items() if value == MASK],
    }
    if not any(wanted.values()):
        return SecretVariables()
    try:
        record = read_json(paths.secrets)
        found = from_plain(SecretVariables, record["runs"].get(str(index), record["all"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable_file_error(
            paths.secrets, f"{error}; the run needs it for {_format_variable_names(wanted)}"
        ) from error
    kept = {"env": found.env, "cluster.env": found.cluster}
    missing = {key: [name for name in names if name not in kept[key]] for key, names in wanted.items()}
    if any(missing.values()):
        raise unreadable_file_error(
            paths.secrets, f"it has no {_format_variable_names(missing)} of run {index}"
        )
    return found


def _format_variable_names(variables: dict[str, list[str]]) -> str:
    return ", ".join(f"{key}.{name}" for key, names in variables.items() for name in names)
