"""Composes configurations from overrides: the entry point of this package.

It submits and writes nothing, and reads only configuration files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpckit.config.explain import load_config
from hpckit.config.overrides import parse
from hpckit.config.points import check_multirun, check_no_points, first_point, list_points, present
from hpckit.config.request import ComposeRequest
from hpckit.config.sampled import sampled_points
from hpckit.config.session import Session, open_session
from hpckit.config.slips import refuse_near_misses
from hpckit.config.staged import check_addressed, for_all, read_words, staged_points
from hpckit.config.sweep import composer, point_of
from hpckit.errors import ConfigError
from hpckit.model.command import override_value
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.plan import SweepPoint
from hpckit.planning.masking import masked_point
from hpckit.planning.secrecy import known_secrets

_SECTIONS = ("parallel", "resources")
"""What a run may continue with other values of."""


def compose(request: ComposeRequest) -> tuple[SweepPoint, ...]:
    """Compose every point of the request, in the order of the sweep: one without `multirun`.

    With `sweep.sampler=optuna` all points are the same, and hold the space that runs get values
    from.

    A point's overrides are the user's own, with each swept one replaced by the point's value: in a
    single launch they compose to the same configuration. If the configuration names stages, these
    are the points of one stage after the other. Variables of a run that look like secrets are
    masked, and are only in the point's `secrets`. Raises ConfigError.
    """
    known = known_secrets(request.environ)
    return tuple(masked_point(point, known) for point in _compose(request))


def compose_run(request: ComposeRequest, session: Session) -> SweepPoint:
    """Compose the one point of the request, whichever stages it names, with its secrets."""
    words = for_all(read_words(request, session))
    refuse_near_misses(session, [word.override for word in words])
    check_multirun(words, multirun=False)
    composing = composer(session, words, request.environ)
    return point_of(composing, words, present(first_point(words)))


def _compose(request: ComposeRequest) -> tuple[SweepPoint, ...]:
    with open_session(request) as session:
        given = read_words(request, session)
        words = for_all(given)
        refuse_near_misses(session, [word.override for word in words])
        check_multirun(words, multirun=request.multirun)
        composing = composer(session, words, request.environ)
        sampled = sampled_points(composing, words) if request.multirun else None
        if sampled is not None:
            check_addressed(given, ())
            settings = sampled[0].settings
            if settings.stages:
                raise ConfigError(
                    f"sweep.sampler={settings.sweep.sampler} does not go with stages: they are "
                    "swept as a grid.",
                    hint="Give values as a list, choice() or range(), or launch the stages one by "
                    "one.",
                )
            return sampled
        many = request.multirun
        first = point_of(composing, words, present(first_point(words)), many=many)
        check_no_points(first.settings.sweep)
        if first.settings.stages:
            return staged_points(given, first, session, request)
        check_addressed(given, ())
        listed, points = list_points(words, first.settings.sweep.zip), list[SweepPoint]()
        for done, overrides in enumerate(listed):
            if request.tell is not None:
                request.tell(done, len(listed))
            points.append(point_of(composing, words, present(overrides), many=many))
        return tuple(points)


def compose_sections(
    words: Sequence[str], present: LaunchConfig, *, environ: Mapping[str, str], cwd: Path
) -> LaunchConfig:
    """Return a run's settings with these words, which are of `parallel` and `resources`.

    A choice of a group replaces its section as a whole. The files of groups are those in `conf`
    below `cwd`, then hpckit's own. Raises ConfigError.
    """
    # Of a command: another program's conf/config.yaml has no layouts.
    request = ComposeRequest(overrides=tuple(words), command=("true",), environ=environ, cwd=cwd)
    with open_session(request) as session:
        for word in parse(words, session.loader):
            if word.is_sweep_override():
                raise ConfigError(
                    f"{word.input_line} has several values, and a run continues with one",
                    hint="give one value: parallel.shard=2",
                )
        chosen = {word.partition("=")[0] for word in words}
        kept = [
            f"{section}.{key}={override_value(value)}"
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
            f"{' '.join(words)} is no layout: {error}", hint="for example parallel=hsdp"
        ) from error
