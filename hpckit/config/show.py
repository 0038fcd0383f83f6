"""Shows the user a configuration before anything is launched, as text.

Nothing has to be complete: missing values are shown as `???`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from hpckit.config.explain import load_config
from hpckit.config.names import dotted_keys, nearest, question
from hpckit.config.points import check_multirun, first_point, list_points, present
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session, open_session
from hpckit.config.staged import check_addressed, for_all, read_words, share_out, stages_of
from hpckit.errors import ConfigError
from hpckit.model.plain import MASK
from hpckit.planning.secrecy import is_secret, known_secrets, masked_words

INFO = ("all", "searchpath", "groups", "defaults")
"""The topics of `show_info`."""


def show_config(request: ComposeRequest, *, package: str = "") -> str:
    """Return the composed configuration as YAML, or the part of it at the dotted `package`.

    Interpolations and `???` stay as written. Several points of a sweep, or of several stages, are
    several YAML documents, each headed by its overrides. Secrets are masked.
    """
    known = known_secrets(request.environ)
    with open_session(request) as session:
        listed = _listed(request, session)
        configs = (_masked(load_config(session, overrides), known) for overrides in listed)
        documents = [_yaml(config, package) for config in configs]
    if len(documents) == 1:
        return documents[0]
    heads = [f"# {' '.join(masked_words(overrides))}\n" for overrides in listed]
    return "---\n".join(head + text for head, text in zip(heads, documents, strict=True))


def _listed(request: ComposeRequest, session: Session) -> Sequence[Sequence[str]]:
    """Return the overrides of every point; with stages, one stage after the other."""
    words = read_words(request, session)
    mine = for_all(words)
    check_multirun(mine, multirun=request.multirun)
    config = load_config(session, present(first_point(mine)))
    stages = stages_of(config)
    zipped = cast("list[list[str]]", OmegaConf.to_container(config.sweep.zip, resolve=True))
    check_addressed(words, [stage.name for stage in stages])
    if not stages:
        return [present(listed) for listed in list_points(mine, zipped)]
    shared = share_out(words, stages, session, zipped, multirun=request.multirun)
    return [overrides for _, listed in shared for overrides in listed]


def _masked(config: DictConfig, known: frozenset[str]) -> DictConfig:
    """Mask the secrets in the configuration, in place, and return it."""
    for key in ("env", "cluster.env"):
        section = OmegaConf.select(config, key, throw_on_resolution_failure=False)
        for name, value in (_container(section) if section else {}).items():
            if is_secret(name, str(value), known):
                section[name] = MASK
    stages = _container(config).get("stages") or {}
    for name, stage in stages.items():
        words = stage.get("overrides") if isinstance(stage, dict) else None
        if isinstance(words, list) and words:
            masked = list(masked_words([str(word) for word in words]))
            OmegaConf.update(config, f"stages.{name}.overrides", masked)
    return config


def show_info(request: ComposeRequest, what: str = "all") -> str:
    """Return the sources of configuration for one of `INFO`; raises ConfigError for others."""
    if what not in INFO:
        raise ConfigError(
            f"--info knows nothing of {what!r}.{question(nearest(what, INFO))}",
            hint=f"Choose one of: {', '.join(INFO)}.",
        )
    with open_session(request) as session:
        parts = {"searchpath": _searchpath, "groups": _groups, "defaults": _defaults}
        chosen = [part for name, part in parts.items() if what in (name, "all")]
        return "\n".join(part(session, request) for part in chosen)


def _yaml(config: DictConfig, package: str) -> str:
    if not package:
        return OmegaConf.to_yaml(config)
    keys = dotted_keys(_container(config))
    if package not in keys:
        raise ConfigError(
            f"The configuration has no part {package!r}.{question(nearest(package, keys))}",
            hint="Name a section or a key, such as resources.",
        )
    part: Any = _container(config)
    for name in package.split("."):
        part = part[name]
    return OmegaConf.to_yaml(OmegaConf.create({package: part}))


def _container(config: DictConfig) -> dict[str, Any]:
    return cast("dict[str, Any]", OmegaConf.to_container(config, enum_to_str=True))


def _searchpath(session: Session, _: ComposeRequest) -> str:
    found = session.loader.get_sources()
    lines = [f"  {source.provider:8} {source.path}" for source in found if source.path]
    return "\n".join(["Configuration is looked for in, first found first taken:", *lines, ""])


def _groups(session: Session, _: ComposeRequest) -> str:
    lines = [f"  {group}: {', '.join(options)}" for group, options in session.groups().items()]
    return "\n".join(["Groups and their options:", *lines, ""])


def _defaults(session: Session, request: ComposeRequest) -> str:
    words = for_all(read_words(request, session))
    check_multirun(words, multirun=request.multirun)
    first = present(first_point(words))
    load_config(session, first)
    lines = [f"  {path}" for path in session.defaults(first)]
    return "\n".join(["Composed of, later ones override earlier ones:", *lines, ""])
