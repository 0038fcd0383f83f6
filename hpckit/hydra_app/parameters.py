"""What `hydra.launcher` says, in hpckit's words; and the application's overrides as columns of results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from shutil import which
from typing import Any

from hydra.core.utils import filter_overrides
from omegaconf import DictConfig, OmegaConf

from hpckit.api.submitit_keys import SBATCH_OPTIONS, SUBMITIT_KEYS
from hpckit.errors import UsageError
from hpckit.hydra_app.freezing import holds_secret
from hpckit.model.command import escape_interpolations
from hpckit.model.launch import LaunchConfig
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field_names

JOB = "hydra_job"  # the key with a job's number, `hydra.job.num`

_KEYS: Mapping[str, str] = {
    **SUBMITIT_KEYS,
    "spare_nodes": "resources.spare_nodes",
    "min_nodes": "resources.min_nodes",
    "runs_per_job": "sweep.runs_per_job",
}
_DEFAULTS = (("spare_nodes", 0), ("runs_per_job", 1), ("array_parallelism", 256), ("nodes", 1))
"""Values that are hpckit's own defaults, too."""

_OF_SLURM = ("timeout_min", "signal_delay_s", "max_num_timeout")
"""Keys with a value by default that nothing reads on this machine."""

_IGNORED = {"submitit_folder": "/.submitit/%j", "stderr_to_stdout": "False", "use_srun": "True"}
"""Keys without a meaning here, and how their usual values end."""

_NAMES = {
    **{place.lstrip("+"): key for key, place in _KEYS.items() if "." in place},
    **{f"resources.additional_parameters.{key}": key for key in SBATCH_OPTIONS},
    "resources.additional_parameters": "additional_parameters",
}
_PLACES = lazy_pattern(rf"(?<![\w.])({'|'.join(sorted(_NAMES, reverse=True))})(?!\w|\.\w)")
_IN_GROUP = lazy_pattern(r"(?<![\w./])(cluster|recovery|checkpoint)\.(\w[\w.]*\w)(=[^\s;,)]*[^\s;,):.])?")
_OPTION = lazy_pattern(r"(?<![\w./])((cluster|recovery|checkpoint|name)(?==)|check=False|auto_resume=True)")
_OF_A_RUN = lazy_pattern(
    r"points\[\d+\]: |run \d+ (?=\(\+\+)| ?\((in the run )?\+\+hydra_job=.*?hydra_job\}\"?\]\)(: )?"
)
"""What hpckit says of a run beside its error: words that nobody wrote."""

_OURS = frozenset({*field_names(LaunchConfig), "experiment"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What a launch is asked for, by `words` for `hpckit.launch`; `groups` are options: `cluster/local`."""

    groups: Sequence[str]
    words: Sequence[str | Mapping[str, Any]]
    options: Mapping[str, bool]
    wait: bool | None
    ignored: Sequence[str]


def read_parameters(given: Mapping[str, Any], environ: Mapping[str, str]) -> Parameters:
    """Return what the keys of `hydra.launcher` ask for; null leaves a value to hpckit's own default."""
    cluster = given.get("cluster")
    here = cluster == "local" or (cluster == "auto" and which("sbatch", path=environ.get("PATH")) is None)
    values: dict[str, Any] = {
        key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for key, value in given.items()
        if value is not None and (key, value) not in _DEFAULTS and not (here and key in _OF_SLURM)
    }
    for key in ("wait", "auto_resume", "check"):
        if not isinstance(values.get(key), bool | None):
            raise UsageError(f"hydra.launcher.{key}={values[key]}: it must be true or false")
    options = {key: values[key] for key in SBATCH_OPTIONS if key in values}
    options |= {str(key): value for key, value in values.get("additional_parameters", {}).items()}
    groups, sections = list[str](), dict[str, Any]()
    for group in ("cluster", "recovery", "checkpoint"):
        chosen = values.get(group)
        if isinstance(chosen, dict):
            sections |= {f"{group}.{key}": value for key, value in chosen.items()}
        elif chosen is not None:
            groups.append(f"{group}/{chosen}")
    words = {place: values[key] for key, place in _KEYS.items() if key in values}
    words |= {"resources.additional_parameters": options} if options else {}
    unusual = [key for key, usual in _IGNORED.items() if not str(values.get(key, usual)).endswith(usual)]
    return Parameters(
        groups=groups,
        words=(*(option.replace("/", "=", 1) for option in groups), sections | words),
        wait=values.get("wait"),
        options={key: values[key] for key in ("auto_resume", "check") if key in values},
        ignored=[f"{key}={values[key]}" for key in unusual],
    )


def name_as_hydra_does(message: str) -> str:
    """Return a message with the keys of `hydra.launcher`, and without the words of single runs."""
    message = _OF_A_RUN.sub("", message)
    message = _PLACES.sub(lambda found: f"hydra.launcher.{_NAMES[found[1]]}", message)
    message = _IN_GROUP.sub(r"hydra.launcher.\1={\2: …}", message)
    return _OPTION.sub(lambda found: f"hydra.launcher.{found[0].lower()}", message)


def name_columns(
    jobs: Mapping[int, Sequence[str]], configs: Mapping[int, DictConfig]
) -> dict[int, dict[str, Any]]:
    """Return the overrides of each job as keys and values of its run, which results show as columns.

    A key that hpckit reads itself stands in `params`. A choice from a group whose keys are set, too,
    is its `choice`.
    """
    named = {number: _name_overrides(jobs[number], configs[number]) for number in jobs}
    keys = {key for own in named.values() for key in own}
    upper = {key for key in keys if any(other.startswith(f"{key}.") for other in keys)}
    return {
        number: {JOB: number} | {f"{key}.choice" if key in upper else key: own[key] for key in own}
        for number, own in named.items()
    }


def _name_overrides(overrides: Sequence[str], config: DictConfig) -> dict[str, Any]:
    found = {}
    for word in filter_overrides(overrides):
        key, equals, text = word.lstrip("+").partition("=")
        if word.startswith("~") or key.startswith("hydra/") or not equals:
            continue
        value = OmegaConf.select(config, key, throw_on_resolution_failure=False) if "/" not in key else text
        name = re.sub(r"[^\w.-]", "_", key.replace("/", "."))
        name = f"params.{name}" if name.partition(".")[0] in _OURS else name
        secret = str(value) != text and holds_secret(key, value)
        value = value if isinstance(value, int | float | str) and not secret else text
        found[name] = escape_interpolations(value) if isinstance(value, str) else value
    return found
