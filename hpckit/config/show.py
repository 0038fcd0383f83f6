"""Shows the user a configuration before anything is launched, as text.

Nothing has to be complete: missing values are shown as `???`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from hpckit.config.explain import load_config
from hpckit.config.names import format_did_you_mean, list_dotted_keys, suggest_nearest_names
from hpckit.config.points import (
    drop_missing_overrides,
    expand_sweep_points,
    overrides_of_first_point,
    refuse_sweep_without_multirun,
)
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session, open_hydra_session
from hpckit.config.staged import (
    assign_words_to_stages,
    parse_config_stages,
    parse_override_words,
    refuse_unknown_stage_prefixes,
    words_for_all_stages,
)
from hpckit.errors import ConfigError
from hpckit.model.plain import MASK
from hpckit.planning.secrecy import find_secrets_in_environment, is_secret_variable, mask_command_line

INFO = ("all", "searchpath", "groups", "defaults")
"""The topics of `render_config_sources`."""


def render_config(request: ComposeRequest, *, package: str = "") -> str:
    """Return the composed configuration as YAML, or the part of it at the dotted `package`.

    Interpolations and `???` stay as written. Several points of a sweep, or of several stages, are
    several YAML documents, each headed by its overrides. Secrets are masked.
    """
    known = find_secrets_in_environment(request.environ)
    with open_hydra_session(request) as session:
        listed = _list_point_overrides(request, session)
        configs = (_mask_config_secrets(load_config(session, overrides), known) for overrides in listed)
        documents = [_render_config_part_as_yaml(config, package) for config in configs]
    if len(documents) == 1:
        return documents[0]
    heads = [f"# {' '.join(mask_command_line(overrides))}\n" for overrides in listed]
    return "---\n".join(head + text for head, text in zip(heads, documents, strict=True))


def _list_point_overrides(request: ComposeRequest, session: Session) -> Sequence[Sequence[str]]:
    words = parse_override_words(request, session)
    mine = words_for_all_stages(words)
    refuse_sweep_without_multirun(mine, multirun=request.multirun)
    config = load_config(session, drop_missing_overrides(overrides_of_first_point(mine)))
    stages = parse_config_stages(config)
    zipped = cast("list[list[str]]", OmegaConf.to_container(config.sweep.zip, resolve=True))
    refuse_unknown_stage_prefixes(words, [stage.name for stage in stages])
    if not stages:
        return [drop_missing_overrides(listed) for listed in expand_sweep_points(mine, zipped)]
    shared = assign_words_to_stages(words, stages, session, zipped, multirun=request.multirun)
    return [overrides for _, listed in shared for overrides in listed]


def _mask_config_secrets(config: DictConfig, known: frozenset[str]) -> DictConfig:
    """Mask the secrets in the configuration, in place, and return it."""
    for key in ("env", "cluster.env"):
        section = OmegaConf.select(config, key, throw_on_resolution_failure=False)
        for name, value in (_config_to_dict(section) if section else {}).items():
            if is_secret_variable(name, str(value), known):
                section[name] = MASK
    stages = _config_to_dict(config).get("stages") or {}
    for name, stage in stages.items():
        words = stage.get("overrides") if isinstance(stage, dict) else None
        if isinstance(words, list) and words:
            masked = list(mask_command_line([str(word) for word in words]))
            OmegaConf.update(config, f"stages.{name}.overrides", masked)
    return config


def render_config_sources(request: ComposeRequest, what: str = "all") -> str:
    """Return the sources of configuration for one of `INFO`; raises ConfigError for others."""
    if what not in INFO:
        raise ConfigError(
            f"--info knows nothing of {what!r}.{format_did_you_mean(suggest_nearest_names(what, INFO))}",
            hint=f"Choose one of: {', '.join(INFO)}.",
        )
    with open_hydra_session(request) as session:
        parts = {
            "searchpath": _render_search_path,
            "groups": _render_groups,
            "defaults": _render_composed_files,
        }
        chosen = [part for name, part in parts.items() if what in (name, "all")]
        return "\n".join(part(session, request) for part in chosen)


def _render_config_part_as_yaml(config: DictConfig, package: str) -> str:
    if not package:
        return OmegaConf.to_yaml(config)
    keys = list_dotted_keys(_config_to_dict(config))
    if package not in keys:
        raise ConfigError(
            "The configuration has no part "
            f"{package!r}.{format_did_you_mean(suggest_nearest_names(package, keys))}",
            hint="Name a section or a key, such as resources.",
        )
    part: Any = _config_to_dict(config)
    for name in package.split("."):
        part = part[name]
    return OmegaConf.to_yaml(OmegaConf.create({package: part}))


def _config_to_dict(config: DictConfig) -> dict[str, Any]:
    return cast("dict[str, Any]", OmegaConf.to_container(config, enum_to_str=True))


def _render_search_path(session: Session, _: ComposeRequest) -> str:
    found = session.loader.get_sources()
    lines = [f"  {source.provider:8} {source.path}" for source in found if source.path]
    return "\n".join(["Configuration is searched here, the first match is used:", *lines, ""])


def _render_groups(session: Session, _: ComposeRequest) -> str:
    lines = [f"  {group}: {', '.join(options)}" for group, options in session.list_option_groups().items()]
    return "\n".join(["Groups and their options:", *lines, ""])


def _render_composed_files(session: Session, request: ComposeRequest) -> str:
    words = words_for_all_stages(parse_override_words(request, session))
    refuse_sweep_without_multirun(words, multirun=request.multirun)
    first = drop_missing_overrides(overrides_of_first_point(words))
    load_config(session, first)
    lines = [f"  {path}" for path in session.list_composed_files(first)]
    return "\n".join(["Composed of these files; later ones override earlier ones:", *lines, ""])
