"""Composes a frozen run again with other words: what they change, and what refers to that.

All else stays as it was frozen, whatever the files say by now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from hpckit.config.compose import compose_run
from hpckit.config.explain import load_config
from hpckit.config.overrides import parse_hydra_overrides
from hpckit.config.points import KEY as POINTS
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session, open_hydra_session
from hpckit.errors import ConfigError
from hpckit.model.command import encode_override_value
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.settings import looks_like_override, replace_superseded_overrides
from hpckit.model.plain import MASK, from_plain, has_same_repr, iterate_leaf_values
from hpckit.model.plan import SecretVariables, SweepPoint
from hpckit.planning.masking import mask_point_secrets
from hpckit.planning.secrecy import find_secrets_in_environment
from hpckit.values import replace


def recompose_point_with_overrides(
    point: SweepPoint, words: Sequence[str], request: ComposeRequest
) -> SweepPoint:
    """Return a frozen point with what these words set or choose, wherever values refer to it.

    The files of `request` are composed twice: with the words, and with the frozen values where the
    words set some. What differs has changed. Raises ConfigError.
    """
    own = [word for word in point.overrides if MASK not in word]
    config, secrets = point.config, point.secrets
    cluster = {**config["cluster"], "env": {**config["cluster"]["env"], **secrets.cluster}}
    frozen = {**config, "env": {**config["env"], **secrets.env}, "cluster": cluster}
    values = dict(iterate_leaf_values(frozen))
    with open_hydra_session(replace(request, overrides=tuple(own))) as session:
        # A key may have come to the files since, or gone from them.
        given = [_force_override(word, session) for word in parse_hydra_overrides(own, session.loader)]
        parsed = parse_hydra_overrides(words, session.loader)
        new = [
            str(word.input_line)
            if _remove_dotted_key(frozen, word.key_or_group) == frozen
            else _force_override(word, session)
            for word in parsed
        ]
        lines = replace_superseded_overrides(given, new)
        places = [place for word in parsed for place in _list_affected_keys(word, session)]
        inside = {key for key in values if any(f"{key}.".startswith(f"{at}.") for at in places)}
        if any(_chooses_group_option(word, session) for word in parsed):
            composed = load_config(session, lines)
            # What fills no section of its own, as an experiment, is taken as the files are now.
            loose = any(OmegaConf.select(composed, place) is None for place in places)
            inside = {*values} if loose else inside
        rest = {key: value for key, value in values.items() if key not in inside}
        after = _compose_with_frozen(session, replace(request, overrides=lines), rest, set())
        given.sort(key=lambda word: word not in lines)  # so that keys are in the same order in both
        before = _compose_with_frozen(session, replace(request, overrides=tuple(given)), values, inside)
    was: Mapping[str, Any] = before.config
    for place in places:
        was = _remove_dotted_key(was, place)
    config = _apply_differences_to_frozen(frozen, was, after.config)
    added = {word.lstrip("+").partition("=")[0] for word in own if word.startswith("+")}
    told = [f"+{word}" if word.partition("=")[0] in added else word for word in words]
    found = replace(
        point,
        overrides=replace_superseded_overrides(point.overrides, told),
        config=config,
        settings=from_plain(LaunchConfig, config),
        secrets=SecretVariables(),
    )
    return mask_point_secrets(
        found, find_secrets_in_environment(request.environ) | point.secrets.secret_values
    )


def _force_override(word: Override, session: Session) -> str:
    line = str(word.input_line)
    return line if word.is_delete() or _chooses_group_option(word, session) else f"++{line.lstrip('+')}"


def _chooses_group_option(word: Override, session: Session) -> bool:
    return session.has_group(word.key_or_group) and not isinstance(word.value(), dict)


def _list_affected_keys(word: Override, session: Session) -> list[str]:
    """Return the keys that a word sets, or the section that it chooses, which it sets whole."""
    key = word.key_or_group
    if _chooses_group_option(word, session):
        return [word.package or key.replace("/", ".")]
    return [] if word.is_delete() else [place for place, _ in iterate_leaf_values(word.value(), key)]


def _compose_with_frozen(
    session: Session, request: ComposeRequest, frozen: Mapping[str, Any], kept: set[str]
) -> SweepPoint:
    """Compose with the frozen values of keys that the files have otherwise by now, or are kept."""
    with suppress(ConfigError):  # the files may no longer take a frozen value
        raw: Any = OmegaConf.to_container(load_config(session, request.overrides), enum_to_str=True)
        files = {key: said for key, said in iterate_leaf_values(raw) if "${" not in str(said)}
        words = (
            f"++{key}={encode_override_value(value)}"
            for key, value in frozen.items()
            if (key in kept or not has_same_repr(files.get(key, value), value))
            and key != POINTS
            and MASK not in str(value)
            and looks_like_override(f"{key}=")
        )
        return compose_run(replace(request, overrides=(*request.overrides, *words)), session)
    return compose_run(request, session)


def _remove_dotted_key(config: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    name, _, rest = place.partition(".")
    if rest and isinstance(config.get(name), Mapping):
        return {**config, name: _remove_dotted_key(config[name], rest)}
    return {key: value for key, value in config.items() if key != name}


def _apply_differences_to_frozen(
    frozen: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    found = {key: value for key, value in frozen.items() if key in after or key not in before}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            found[key] = _apply_differences_to_frozen(found.get(key) or {}, old, value)
        elif key not in before or not has_same_repr(value, old):
            found[key] = value
    if [key for key in before if key in after] != [key for key in after if key in before]:
        return {key: found[key] for key in (*after, *found) if key in found}
    return found
