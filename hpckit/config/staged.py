"""Determines the overrides of each stage of a launch, and composes the points of all stages.

The overrides for all stages come first, then a stage's own, then those for only that stage on the
command line (`train:lr=0.1`); the last one counts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from hpckit.config.command import add_command_override
from hpckit.config.names import format_did_you_mean, suggest_nearest_names
from hpckit.config.overrides import (
    parse_hydra_overrides,
    refuse_program_among_overrides,
    suggest_override_as_one_text,
)
from hpckit.config.points import (
    Listed,
    Word,
    build_points_columns,
    drop_missing_overrides,
    expand_sweep_points,
    is_points_file_override,
    read_points_columns,
    refuse_doubly_set_keys,
    refuse_sweep_without_multirun,
)
from hpckit.config.request import ComposeRequest
from hpckit.config.resolve import collect_stage_overrides, remove_stage_overrides
from hpckit.config.session import Session
from hpckit.config.sweep import build_composer, compose_sweep_point
from hpckit.errors import ConfigError
from hpckit.model.plan import SweepPoint
from hpckit.patterns import lazy_pattern
from hpckit.planning.stages import StageSettings, parse_stages
from hpckit.planning.sweep.point_file import GIVEN, build_point_rows
from hpckit.values import replace

_ADDRESSED = lazy_pattern(r"(?P<stage>[A-Za-z_]\w*):(?P<word>[^=]*(=.*)?)\Z", re.ASCII | re.DOTALL)
_OF_THE_LAUNCH = ("name", "budget", "sweep", "stages")
"""Keys that belong to the whole launch, whatever a stage sets."""

_Shared = tuple[tuple[Word, ...], list[tuple[str, ...]]]
"""The overrides of a stage, and those of each of its points."""


def parse_override_words(request: ComposeRequest, session: Session) -> tuple[Word, ...]:
    """Return the words of a command line, in order; raises ConfigError."""
    refuse_program_among_overrides(request.overrides)
    found: list[Word] = []
    if request.points is not None:
        rows = build_point_rows(request.points)
        _add_points_columns(found, build_points_columns(rows, GIVEN, session.loader), session)
    before = ""
    for given in add_command_override(request, session):
        match = _ADDRESSED.match(given)
        stage, text = (None, given) if match is None else (match["stage"], match["word"])
        if stage is not None and "=" not in text and not text.startswith("~"):
            raise ConfigError(
                f"'{stage}:{text}' is not an override: it has no '='.",
                hint=f"Write {stage}={text}; for one stage alone: STAGE:KEY=VALUE",
            )
        try:
            (override,) = parse_hydra_overrides([text], session.loader)
        except ConfigError as error:
            raise _add_split_word_hint(error, before, given) from error
        if is_points_file_override(override):
            _check_single_points_file(given, stage, found)
            _add_points_columns(found, read_points_columns(override, request.cwd, session.loader), session)
        else:
            found.append(Word(stage=stage, override=override))
        before = given
    refuse_doubly_set_keys(found)
    return tuple(found)


def _add_points_columns(found: list[Word], columns: Sequence[Word], session: Session) -> None:
    session.columns.extend(word.column.words for word in columns if word.column)
    found.extend(columns)


def _add_split_word_hint(error: ConfigError, before: str, given: str) -> ConfigError:
    if "=" in given or "=" not in before:
        return error
    whole = shlex.quote(f"{before} {given}")
    return ConfigError(error.message, hint=f"{error.hint}\nIf it belongs to the word before, write {whole}")


def _check_single_points_file(given: str, stage: str | None, before: Sequence[Word]) -> None:
    if stage is not None:
        raise ConfigError(
            f"{given}: a file of points is for the whole launch",
            hint=f"write {given.partition(':')[2]}; a key of the file may be for one stage alone, "
            f"such as {stage}:lr",
        )
    if any(word.column is not None for word in before):
        raise ConfigError(f"{given}: sweep.points is given twice", hint="put all points into one file")


def words_for_all_stages(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words that apply to every stage."""
    return tuple(word for word in words if word.stage is None)


def refuse_unknown_stage_prefixes(words: Sequence[Word], stages: Sequence[str]) -> None:
    """Raise ConfigError if a word is for a stage that does not exist."""
    for word in words:
        if word.stage is None or word.stage in stages:
            continue
        there = (
            f"Stages: {', '.join(stages)}."
            if stages
            else "There are no stages here: an experiment names them under `stages`."
        )
        raise ConfigError(
            f"{word.stage}:{word.override.input_line}: there is no stage {word.stage}."
            f"{format_did_you_mean(suggest_nearest_names(word.stage, stages))}",
            hint=there,
        )


def assign_words_to_stages(
    words: Sequence[Word],
    stages: Sequence[StageSettings],
    session: Session,
    zipped: Sequence[Sequence[str]],
    *,
    multirun: bool,
) -> list[_Shared]:
    """Return the overrides of each stage; raises ConfigError.

    Every axis of the sweep spans the points of all swept stages, even if only one stage sets it, so
    that point i of one stage corresponds to point i of any other.
    """
    refuse_unknown_stage_prefixes(words, [stage.name for stage in stages])
    _refuse_swept_stages(words, stages)
    refuse_sweep_without_multirun(words, multirun=multirun)
    listed = expand_sweep_points(words, zipped)
    return [_collect_stage_words(stage, words, listed, session) for stage in stages]


def _collect_stage_words(
    stage: StageSettings, words: Sequence[Word], listed: Sequence[Listed], session: Session
) -> _Shared:
    own = parse_hydra_overrides(stage.overrides, session.loader)
    for override in own:
        if override.is_sweep_override():
            text = suggest_override_as_one_text(override)
            raise ConfigError(
                f"stages.{stage.name}.overrides has {override.input_line}, which is a sweep.",
                hint=f"Sweep on the command line: -m '{stage.name}:{override.input_line}'"
                + ("" if text is None else f"\nFor one text write in the file: - {text}"),
            )
    taken = [(place, word) for place, word in enumerate(words) if not (stage.once and word.is_swept)]
    before = [place for place, word in taken if word.stage is None]
    behind = [place for place, word in taken if word.stage == stage.name]
    middle = tuple(str(override.input_line) for override in own)
    given = (
        *(words[place] for place in before),
        *(Word(stage=stage.name, override=override) for override in own),
        *(words[place] for place in behind),
    )
    return given, [
        drop_missing_overrides(
            (*(row[place] for place in before), *middle, *(row[place] for place in behind))
        )
        for row in (listed[:1] if stage.once else listed)
    ]


def _refuse_swept_stages(words: Sequence[Word], stages: Sequence[StageSettings]) -> None:
    once = {stage.name for stage in stages if stage.once}
    for word in words:
        line = str(word.override.input_line)
        if not word.is_swept:
            continue
        if word.stage in once:
            raise ConfigError(
                f"{word.stage}:{line}: stage {word.stage} runs once, but this is a sweep.",
                hint=f"Sweep another stage, or set stages.{word.stage}.once=false.",
            )
        if str(word.override.key_or_group).partition(".")[0] == "stages":
            raise ConfigError(
                f"{line}: all runs of one launch must have the same stages.",
                hint="Start one launch for each.",
            )


def parse_config_stages(config: DictConfig) -> tuple[StageSettings, ...]:
    """Return the stages that a composition defines; raises ConfigError."""
    if not config.get("stages"):
        return ()
    words = collect_stage_overrides(config)
    named = remove_stage_overrides(config, words).stages
    stated = cast("dict[str, Any]", OmegaConf.to_container(named, resolve=True))
    for name, given in words.items():
        stated[name]["overrides"] = given
    return parse_stages(stated)


def compose_staged_points(
    words: Sequence[Word], base: SweepPoint, session: Session, request: ComposeRequest
) -> tuple[SweepPoint, ...]:
    """Return the points of all stages, one stage after the other; raises ConfigError.

    `base` is composed from the words for all stages: its settings for the whole launch apply to all.
    """
    stages = parse_stages(base.settings.stages)
    zipped = base.settings.sweep.zip
    shared = assign_words_to_stages(words, stages, session, zipped, multirun=request.multirun)
    return tuple(
        point
        for stage, own in zip(stages, shared, strict=True)
        for point in _compose_stage_points(stage.name, own, base, session, request.environ)
    )


def _compose_stage_points(
    name: str, own: _Shared, base: SweepPoint, session: Session, environ: Mapping[str, str]
) -> list[SweepPoint]:
    words, listed = own
    composing = build_composer(session, words, environ)
    try:
        found = [compose_sweep_point(composing, words, overrides) for overrides in listed]
    except ConfigError as error:
        raise ConfigError(
            f"{error.message} (in stage {name})",
            hint=f"{error.hint}\nFor one stage alone: STAGE:KEY=VALUE, such as {name}:seed=1",
        ) from error
    given = {key: base.config[key] for key in _OF_THE_LAUNCH}
    kept = {key: getattr(base.settings, key) for key in _OF_THE_LAUNCH}
    return [
        replace(point, config={**point.config, **given}, settings=replace(point.settings, **kept), stage=name)
        for point in found
    ]
