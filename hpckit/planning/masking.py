"""Masks what looks like a secret in composed points. Pure.

planning.secrecy decides what looks like a secret, and masks it in words and in messages. The output
of `mask_point_secrets` can be shown, hashed and written to files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpckit.errors import ConfigError
from hpckit.model.plain import MASK, iterate_config_strings
from hpckit.model.plan import SecretVariables, SweepPoint
from hpckit.planning.secrecy import SEARCHED_FROM, is_secret_variable, mask_command_line
from hpckit.values import replace


def mask_point_secrets(point: SweepPoint, known: frozenset[str] = frozenset()) -> SweepPoint:
    """Return a point without its secrets, which are only in its `secrets`.

    `known` are texts that are secrets in any variable. Raises ConfigError if a secret is the mask
    itself, holds a NUL character, or is searched by an adaptive sweep.
    """
    env = _find_secret_env_variables("env", point.settings.env, known)
    cluster = _find_secret_env_variables("cluster.env", point.settings.cluster.env, known)
    secrets = SecretVariables(env=env, cluster=cluster)
    stages = {name: _mask_stage_overrides(stage, secrets) for name, stage in point.settings.stages.items()}
    _refuse_search_over_secrets(point, known)
    overrides = mask_command_line(point.overrides, secrets.secret_values)
    if not secrets and stages == point.settings.stages and overrides == point.overrides:
        return point
    own = {**point.settings.env, **dict.fromkeys(secrets.env, MASK)}
    theirs = {**point.settings.cluster.env, **dict.fromkeys(secrets.cluster, MASK)}
    masked = replace(point.settings.cluster, env=theirs)
    return replace(
        point,
        overrides=overrides,
        config=_mask_secrets_in_config(point.config, secrets, stages),
        settings=replace(point.settings, env=own, cluster=masked, stages=dict(stages)),
        secrets=secrets,
    )


def _find_secret_env_variables(
    section: str, variables: Mapping[str, str], known: frozenset[str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in variables.items():
        if value == MASK:
            raise ConfigError(
                f"{section}.{name} is {MASK}, which stands for a secret that is not shown",
                hint="give the value itself; `hpckit rerun` takes it over from an earlier launch",
            )
        if is_secret_variable(name, value, known):
            if "\0" in value:
                raise ConfigError(
                    f"{section}.{name} holds a NUL character, which is not allowed in a variable",
                    hint="encode it, for example with base64",
                )
            found[name] = value
    return found


def _refuse_search_over_secrets(point: SweepPoint, known: frozenset[str]) -> None:
    """Refuse to search through secrets: the study and the runs record the values."""
    for axis in point.search.axes if point.search is not None else ():
        section, _, name = axis.key.rpartition(".")
        if section in ("env", "cluster.env") and any(
            is_secret_variable(name, str(value), known) for value in axis.values
        ):
            raise ConfigError(
                f"{axis.key} looks like a secret, and sweep.sampler=optuna records its values",
                hint="sweep it without the sampler, or let all runs have the same one",
            )


def _mask_secrets_in_config(
    config: Mapping[str, Any], secrets: SecretVariables, stages: Mapping[str, Any]
) -> dict[str, Any]:
    masked = dict(config)
    if secrets.env:
        masked["env"] = {**config["env"], **dict.fromkeys(secrets.env, MASK)}
    if secrets.cluster:
        env = {**config["cluster"]["env"], **dict.fromkeys(secrets.cluster, MASK)}
        masked["cluster"] = {**config["cluster"], "env": env}
    if stages:
        masked["stages"] = dict(stages)
    return masked


def _mask_stage_overrides(stage: Any, secrets: SecretVariables) -> Any:
    if not isinstance(stage, Mapping) or not isinstance(stage.get("overrides"), list):
        return stage
    words = [str(word) for word in stage["overrides"]]
    return {**stage, "overrides": list(mask_command_line(words, secrets.secret_values))}


def find_keys_exposing_secrets(point: SweepPoint) -> tuple[str, ...]:
    """Return the keys of a masked point that still contain one of its secrets."""
    secrets = [text for text in point.secrets.secret_values if len(text) >= SEARCHED_FROM]
    found = (
        key for key, text in iterate_config_strings(point.config) if any(secret in text for secret in secrets)
    )
    return tuple(dict.fromkeys(map(".".join, found)))
