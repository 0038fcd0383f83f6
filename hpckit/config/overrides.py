"""Parses Hydra's override grammar: the meaning of each override and its sweep values.

It composes nothing. Grammar errors are ConfigErrors that quote the override.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Override,
    Quote,
    QuotedString,
    RangeSweep,
    Transformer,
    ValueType,
)
from hydra.errors import HydraException, OverrideParseException

from hpckit.config.schema import is_decimal_key, is_scalar_key, key_takes_one_text
from hpckit.errors import ConfigError
from hpckit.patterns import lazy_pattern
from hpckit.planning.sweep.points import MAX_POINTS

_EXAMPLES = (
    "Write key=value, +key=value (new key), ~key (remove) or group=option; quote a value with "
    "special characters twice, once for the shell: 'key=\"a, b\"'."
)

_PROGRAM = lazy_pattern(r"(?:\A|/)(?:python[\d.]*|bash|sh|torchrun|accelerate|srun|mpirun)\Z|\.sh\Z")

_LISTS_OF_SLURM = frozenset({"resources.mail_type", "resources.exclude", "resources.dependency"})
"""Keys that take a list with commas, and hardly differ between runs."""

_INTEGER = lazy_pattern(r"-?(0|[1-9][0-9]*)\Z", re.ASCII)
_FLOAT = lazy_pattern(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z", re.ASCII)
_WORD = lazy_pattern(r"(?!(null|true|false|inf|nan)\Z)[a-z_][a-z0-9_]*\Z", re.ASCII | re.IGNORECASE)
_QUOTED = lazy_pattern(r"'([^'\\$]*)'\Z")

# Lines of the parser's message that only repeat the override; 1.4 has more of them than 1.3.
_WITHOUT_NEWS = ("Error parsing override", "Error when parsing index")

_OF_THE_PARSER = lazy_pattern(
    r"(?:(?:mismatched|extraneous) input|no viable alternative at input) '(.*)'(?: expecting|\Z)"
)

_RAISED = lazy_pattern(r"\w+ while evaluating ('.*'): ")

_CHOICES = lazy_pattern(r"choice\((.*)\)\Z", re.DOTALL)
_CHOICE = lazy_pattern(
    r"""(?: '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | \\. | \[[^][]*\] | \{[^{}]*\}
    | [^][{}(),'"\\] )+""",
    re.DOTALL | re.VERBOSE,
)
"""One of several choices, up to a comma outside of quotes and brackets."""

_DECIMAL_COMMA = lazy_pattern(r"[+-]?\d+,\d+")


def parse_hydra_overrides(overrides: Sequence[str], loader: ConfigLoader) -> tuple[Override, ...]:
    """Parse overrides; raises ConfigError for the first one that is not in the grammar."""
    parser = OverridesParser.create(config_loader=loader)
    try:
        parsed = tuple(parser.parse_overrides(list(overrides)))
    except OverrideParseException as error:
        raise _override_grammar_error(error, loader) from error
    for override in parsed:
        if not override.key_or_group:
            raise ConfigError(f"{override.input_line!r} names no key.", hint=_EXAMPLES)
        if override.key_or_group == "hydra" or override.key_or_group.startswith("hydra."):
            raise ConfigError(
                f"{override.input_line}: hpckit uses Hydra to compose, not to launch; its own "
                "settings (hydra.*) have no effect here.",
                hint="Folders: output_dir and name. Sweeps: -m. Where runs go: cluster=....",
            )
    return parsed


def parse_simple_override_value(text: str) -> int | float | str | None:
    """Return the value of a simple text without Hydra's slow parser; None for any other text."""
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    quoted = _QUOTED.match(text)
    return quoted[1] if quoted else text if _WORD.match(text) else None


def refuse_program_among_overrides(words: Sequence[str]) -> None:
    """Raise ConfigError if words of a program, or parts of one value, are among the overrides."""
    bare = [place for place, word in enumerate(words) if "=" not in word and word[:1] != "~"]
    split = [place for place, word in enumerate(words) if _has_unclosed_bracket(word)]
    if split and words[split[0] + 1 :]:
        raise _shell_split_error(words, split[0])
    if bare and bare[0] and words[bare[0] - 1].startswith("command="):
        # The shell has separated `command=python` and `train.py`.
        place = bare[0] - 1
        program = [words[place].removeprefix("command="), *words[bare[0] :]]
        raise _misplaced_program_error(words[bare[0]], words[:place], program)
    if not bare:
        return
    word, program = words[bare[0]], list(words[bare[0] :])
    if _PROGRAM.search(word) or word.endswith(".py"):
        program = program if _PROGRAM.search(word) else ["python", *program]
        raise _misplaced_program_error(word, words[: bare[0]], program)


def _misplaced_program_error(word: str, before: Sequence[str], program: Sequence[str]) -> ConfigError:
    own = [one for one in before if one != "experiment=command"]
    return ConfigError(
        f"{word!r} is not an override (key=value). Put a program to run after --.",
        hint=shlex.join(["hpckit", "launch", *own, "--", *program]),
    )


def _has_unclosed_bracket(word: str) -> bool:
    value = word.partition("=")[2]
    if value[:1] in ("'", '"'):
        return value.count(value[0]) == 1
    return any(value.count(one) > value.count(other) for one, other in ("[]", "{}", "()"))


def _shell_split_error(words: Sequence[str], place: int) -> ConfigError:
    """Return the error for words that belong together, up to the one that closes the bracket."""
    end = place + 1
    while end < len(words) and _has_unclosed_bracket(" ".join(words[place:end])):
        end += 1
    whole = " ".join(words[place:end])
    return ConfigError(
        f"{words[place]!r} is a part of an override: a bracket or a quote in it is not closed.",
        hint=f"The shell splits at spaces; quote the whole word: {shlex.quote(whole)}",
    )


def check_sweep_overrides(overrides: Sequence[Override], *, multirun: bool) -> None:
    """Raise ConfigError if something is swept without `multirun`, or has no values."""
    swept = [override for override in overrides if override.is_sweep_override()]
    if swept and not multirun:
        raise _missing_multirun_error(swept[0])
    for override in swept:
        _refuse_swept_slurm_list(override)
        if override.is_discrete_sweep():
            list_swept_values(override, 1)


def suggest_override_as_one_text(override: Override) -> str | None:
    """Return how to set a key to one text with commas, shell-quoted; None if it takes no text."""
    key, _, values = str(override.input_line).partition("=")
    return _quote_for_shell_and_hydra(key, values) if key_takes_one_text(str(override.key_or_group)) else None


def _quote_for_shell_and_hydra(key: str, text: str) -> str:
    return shlex.quote(f"{key}={QuotedString(text=text, quote=Quote.double).with_quotes()}")


def _refuse_swept_slurm_list(override: Override) -> None:
    """Raise ConfigError for a list such as END,FAIL that would start a run for each item."""
    simple = override.value_type is ValueType.SIMPLE_CHOICE_SWEEP
    if simple and str(override.key_or_group) in _LISTS_OF_SLURM:
        key, _, values = str(override.input_line).partition("=")
        raise ConfigError(
            f"{override.input_line} would start a run for each of {values}",
            hint=f"for one text write {suggest_override_as_one_text(override)}; for a sweep write "
            f"{shlex.quote(f'{key}=choice({values})')}",
        )


def list_swept_values(override: Override, most: int = MAX_POINTS + 1) -> Sequence[str]:
    """Return the values of a sweep that can be listed, as text; raises ConfigError if it cannot."""
    try:
        values = list(islice(_iterate_swept_values(override), most))
    except (HydraException, ValueError) as error:
        raise ConfigError(
            f"{override.input_line}: the sweep cannot be listed: {error}", hint=_EXAMPLES
        ) from error
    if not values:
        raise ConfigError(
            f"{override.input_line}: the sweep has no values.",
            hint="Check the range, or the pattern against `--info groups`.",
        )
    return values


def _iterate_swept_values(override: Override) -> Iterator[str]:
    """Return the values of a sweep as text; a range that is too long to launch is not shuffled."""
    swept = override.value()
    if isinstance(swept, RangeSweep) and swept.shuffle:
        values = islice(swept.range(), MAX_POINTS + 1)
        if sum(1 for _ in values) > MAX_POINTS:
            return map(Transformer.str, swept.range())
    if not isinstance(swept, ChoiceSweep):
        return override.sweep_string_iterator()
    # Hydra prints its values, True of true and 1000.0 of 1e3: here they are as they were typed.
    found = list(override.sweep_string_iterator())
    listed = _CHOICES.sub(r"\1", str(override.input_line).partition("=")[2])
    typed = _CHOICE.findall(listed)
    if len(typed) != len(found) or ",".join(typed) != listed:
        return iter(found)
    return (
        other if any(sign in one for sign in "'\"\\") else one.strip()
        for one, other in zip(typed, found, strict=True)
    )


def _missing_multirun_error(override: Override) -> ConfigError:
    line, key = str(override.input_line), str(override.key_or_group)
    values, text = line.partition("=")[2], suggest_override_as_one_text(override)
    simple = override.value_type is ValueType.SIMPLE_CHOICE_SWEEP
    if key == "command":
        hint = f"Put the command after --: hpckit launch -- {values}"
    elif is_decimal_key(key) and _DECIMAL_COMMA.fullmatch(values):
        hint = f"Write decimals with a point: {key}={values.replace(',', '.')}; for a sweep add -m"
        hint += " (--multirun)."
    elif simple and text is not None:
        hint = f"For one text write {text}; for a sweep add -m (--multirun)."
    elif not simple or is_scalar_key(key):
        hint = "Add -m (--multirun)."
    else:
        listed = shlex.quote(f"{override.get_key_element()}=[{values}]")
        hint = f"Add -m (--multirun); for one list write {listed}."
    return ConfigError(f"{line} asks for a sweep, but this is a single run.", hint=hint)


def _override_grammar_error(error: OverrideParseException, loader: ConfigLoader) -> ConfigError:
    quoted = f"{error.override!r} is not an override in Hydra's grammar"
    stated = [line.strip() for line in str(error.message).splitlines()]
    lines = [line for line in stated if not line.startswith(_WITHOUT_NEWS)] or stated
    if "=" not in error.override and not error.override.startswith("~"):
        lines = ["it has no '='"]
    if lines[0].startswith("LexerNoViableAlt"):
        lines = ["a character in it must be quoted"]
    if (found := _OF_THE_PARSER.match(lines[0])) is not None:
        at_end = found[1] == "<EOF>"
        lines = ["a value is missing at its end" if at_end else f"{found[1]!r} is not allowed there"]
    lines = [_RAISED.sub(r"\1: ", lines[0])]
    choices = [
        f"{group}={error.override}"
        for group in loader.list_groups("")
        if error.override in loader.get_group_options(group)
    ]
    hint = f"Did you mean {' or '.join(choices)}?" if choices else _EXAMPLES
    key, _, text = error.override.partition("=")
    if text and key_takes_one_text(key.lstrip("+")):
        hint = f"For one text write {_quote_for_shell_and_hydra(key, text)}"
    return ConfigError(f"{quoted}: {lines[0].removesuffix('.')}.", hint=hint)
