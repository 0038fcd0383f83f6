"""Composes configurations from overrides: the entry point of this package.

It submits and writes nothing, and reads only configuration files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpckit.config.explain import load_config
from hpckit.config.overrides import parse_hydra_overrides
from hpckit.config.points import (
    drop_missing_overrides,
    expand_sweep_points,
    overrides_of_first_point,
    refuse_points_in_config,
    refuse_sweep_without_multirun,
)
from hpckit.config.request import ComposeRequest
from hpckit.config.sampled import sample_sweep_points
from hpckit.config.session import Session, open_hydra_session
from hpckit.config.slips import refuse_misspelt_keys
from hpckit.config.staged import (
    compose_staged_points,
    parse_override_words,
    refuse_unknown_stage_prefixes,
    words_for_all_stages,
)
from hpckit.config.sweep import build_composer, compose_sweep_point
from hpckit.errors import ConfigError
from hpckit.model.command import encode_override_value
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.plan import SweepPoint
from hpckit.planning.masking import mask_point_secrets
from hpckit.planning.secrecy import find_secrets_in_environment

_SECTIONS = ("parallel", "resources")
"""What a run may continue with other values of."""


def compose_sweep_points(request: ComposeRequest) -> tuple[SweepPoint, ...]:
    """Compose every point of the request, in the order of the sweep: one without `multirun`.

    With `sweep.sampler=optuna` all points are the same, and hold the space that runs get values from.

    A point's overrides are the user's own, with each swept one replaced by the point's value: in a
    single launch they compose to the same configuration. If the configuration names stages, these
    are the points of one stage after the other. Variables of a run that look like secrets are
    masked, and are only in the point's `secrets`. Raises ConfigError.
    """
    known = find_secrets_in_environment(request.environ)
    return tuple(mask_point_secrets(point, known) for point in _compose_unmasked_points(request))


def compose_run(request: ComposeRequest, session: Session) -> SweepPoint:
    """Compose the one point of the request, whichever stages it names, with its secrets."""
    words = words_for_all_stages(parse_override_words(request, session))
    refuse_misspelt_keys(session, [word.override for word in words])
    refuse_sweep_without_multirun(words, multirun=False)
    composing = build_composer(session, words, request.environ)
    return compose_sweep_point(composing, words, drop_missing_overrides(overrides_of_first_point(words)))


def _compose_unmasked_points(request: ComposeRequest) -> tuple[SweepPoint, ...]:
    with open_hydra_session(request) as session:
        given = parse_override_words(request, session)
        words = words_for_all_stages(given)
        refuse_misspelt_keys(session, [word.override for word in words])
        refuse_sweep_without_multirun(words, multirun=request.multirun)
        composing = build_composer(session, words, request.environ)
        sampled = sample_sweep_points(composing, words) if request.multirun else None
        if sampled is not None:
            refuse_unknown_stage_prefixes(given, ())
            settings = sampled[0].settings
            if settings.stages:
                raise ConfigError(
                    f"sweep.sampler={settings.sweep.sampler} does not support stages: a launch "
                    "with stages can be swept as a grid only.",
                    hint="Leave sweep.sampler out and give values as a list, choice() or range(), "
                    "or launch the stages one by one.",
                )
            return sampled
        many = request.multirun
        first = compose_sweep_point(
            composing, words, drop_missing_overrides(overrides_of_first_point(words)), many=many
        )
        refuse_points_in_config(first.settings.sweep)
        if first.settings.stages:
            return compose_staged_points(given, first, session, request)
        refuse_unknown_stage_prefixes(given, ())
        listed, points = expand_sweep_points(words, first.settings.sweep.zip), list[SweepPoint]()
        for done, overrides in enumerate(listed):
            if request.tell is not None:
                request.tell(done, len(listed))
            points.append(compose_sweep_point(composing, words, drop_missing_overrides(overrides), many=many))
        return tuple(points)


def compose_parallel_and_resources(
    words: Sequence[str], present: LaunchConfig, *, environ: Mapping[str, str], cwd: Path
) -> LaunchConfig:
    """Return a run's settings with these words, which are of `parallel` and `resources`.

    A choice of a group replaces its section as a whole. The files of groups are those in `conf`
    below `cwd`, then hpckit's own. Raises ConfigError.
    """
    # Of a command: another program's conf/config.yaml has no layouts.
    request = ComposeRequest(overrides=tuple(words), command=("true",), environ=environ, cwd=cwd)
    with open_hydra_session(request) as session:
        for word in parse_hydra_overrides(words, session.loader):
            if word.is_sweep_override():
                raise ConfigError(
                    f"{word.input_line} has several values, but a run continues with only one",
                    hint="give one value: parallel.shard=2",
                )
        chosen = {word.partition("=")[0] for word in words}
        kept = [
            f"{section}.{key}={encode_override_value(value)}"
            for section in _SECTIONS
            if section not in chosen
            for key, value in to_plain(getattr(present, section)).items()
        ]
        config = load_config(session, [*kept, *words])
        try:
            sections = {
                name: OmegaConf.to_container(config[name], resolve=True, enum_to_str=True)
                for name in _SECTIONS
            }
        except OmegaConfBaseException as error:
            raise ConfigError(
                f"{' '.join(words)}: {str(error).splitlines()[0]}",
                hint="give the values as they are: parallel.shard=2",
            ) from error
    try:
        return from_plain(LaunchConfig, {**to_plain(present), **sections})
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{' '.join(words)} is not a valid layout: {error}", hint="for example parallel=hsdp"
        ) from error
