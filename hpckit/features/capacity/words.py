"""What a plan is asked for, in words: sizes of a layout, counts with a suffix, ranges. Pure.

It knows no model and no GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from hpckit.errors import ConfigError
from hpckit.model.counted import format_count
from hpckit.model.parallel.layout import MOST_RANKS, Layout
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field

_SIZES = ("replicate", "shard", "tensor", "pipeline", "context")
_STAGES = "stages_per_rank"
_SEQUENCE = "sequence"
_GROUPS = {
    "none": "leave --parallel out: what nothing else takes replicates",
    "fsdp": "for parallel=fsdp give shard=N with the N of --gpus",
    "hsdp": "for parallel=hsdp give shard=N with the GPUs of a node",
    "parallel": "for parallel=fsdp give shard=N with the N of --gpus, for tensor give tensor=N, …",
}
_MEANT = {
    **dict.fromkeys(("dp", "ddp", "data", "replica", "replicas"), ("replicate", "shard")),
    **dict.fromkeys(("tp", "mp"), ("tensor",)),
    **dict.fromkeys(("pp", "pipe", "stages"), ("pipeline",)),
    **dict.fromkeys(("cp", "ring"), ("context",)),
    **dict.fromkeys(("sp", "sequence_parallel"), ("sequence",)),
    **dict.fromkeys(("zero3", "shards"), ("shard",)),
    **dict.fromkeys(("vpp", "virtual", "interleave"), ("stages_per_rank",)),
}
"""What others call these sizes."""
_MEANING = {"replicate": "whole copies", "shard": "of one copy, as FSDP does"}
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_COUNT = lazy_pattern(r"([0-9]+\.?[0-9]*(?:e\+?[0-9]{1,3})?)([KMBT]?)", re.IGNORECASE)
_MOST = 1e18
_WHOLE = lazy_pattern(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelWords:
    """What `--parallel` says: sizes by axis, and what is left as None where nothing was said."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    stages_per_rank: int | None = None
    sequence: bool = True

    @classmethod
    def parse(cls, words: Sequence[str]) -> ParallelWords:
        """Return what words such as `tensor=8` say; raises ConfigError, also if one says it again.

        Example: `ParallelWords.of(["tensor=8", "sequence=false"]).sizes` is `{"tensor": 8}`.
        """
        given: dict[str, str] = {}
        for name, value in _split_parallel_words(words):
            if name in given:
                raise ConfigError(
                    f"--parallel gives {name} twice: {name}={given[name]} and {name}={value}",
                    hint="give each size once",
                )
            given[name] = value
        sequence = _parse_sequence_parallel_switch(given.pop(_SEQUENCE, "true"))
        sizes = {name: _parse_axis_size(name, value) for name, value in given.items()}
        return cls(stages_per_rank=sizes.pop(_STAGES, None), sizes=sizes, sequence=sequence)

    def build_layout(self, gpus: int) -> Layout:
        """Return the layout on this many GPUs; what the sizes leave over replicates.

        Raises ConfigError if they do not fill these GPUs.
        """
        inner = Layout(**{name: size for name, size in self.sizes.items() if name != "replicate"})
        replicas = self.sizes.get("replicate")
        needed = inner.world_size * (replicas or 1)
        if replicas is not None and needed < gpus:
            raise ConfigError(
                f"--parallel {self.sizes_text} is {format_count(needed, 'GPU')}, and there are {gpus}",
                hint="leave replicate out: it takes what the other sizes leave over",
            )
        self.check_gpu_count(needed, gpus)
        return inner.with_replicas(gpus // inner.world_size)

    @property
    def sizes_text(self) -> str:
        """The sizes as they are given: `tensor=8 shard=2`."""
        return " ".join(f"{name}={size}" for name, size in self.sizes.items())

    def check_gpu_count(self, needed: int, gpus: int) -> None:
        """Raise ConfigError if this many GPUs are no whole number of layouts."""
        if needed > gpus:
            raise ConfigError(
                f"--parallel {self.sizes_text} needs {format_count(needed, 'GPU')}, and there "
                f"{'is' if gpus == 1 else 'are'} {gpus}",
                hint=f"give --gpus {needed}, or smaller sizes",
            )
        if gpus % needed:
            raise ConfigError(
                f"--parallel {self.sizes_text} needs GPUs in multiples of {needed}, and there are {gpus}",
                hint=f"give --gpus {gpus - gpus % needed} or {gpus + needed - gpus % needed}, or other sizes",
            )


def _split_parallel_words(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield names and values; raises ConfigError for what is none."""
    for place, word in enumerate(words):
        name, _, value = word.removeprefix("parallel.").partition("=")
        if name in _GROUPS:
            raise ConfigError(
                f"--parallel takes sizes, and {word} is an override of `launch`",
                hint=f"{_GROUPS[name]}; {_format_parallel_option_names()}",
            )
        if name not in (*_SIZES, _STAGES, _SEQUENCE):
            raise _build_unknown_size_error(name, value)
        if not value:
            following = "".join(words[place + 1 : place + 2])
            raise ConfigError(
                f"--parallel {name} has no size",
                hint="write name and size as one word: "
                f"--parallel {name}={following if following.isdecimal() else 'N'}",
            )
        yield name, value


def _build_unknown_size_error(name: str, value: str) -> ConfigError:
    if name.isdecimal() and not value:
        return ConfigError(
            f"--parallel {name} is a number without a name",
            hint=f"write name and size as one word, such as --parallel shard={name}",
        )
    if "." in name:
        return ConfigError(
            f"--parallel {name}={value} is not a size of a layout",
            hint="overrides stand before options: hpckit plan KEY=VALUE --gpu …",
        )
    known = (*_SIZES, _STAGES, _SEQUENCE)
    near = _MEANT.get(name.lower()) or get_close_matches(name.lower(), known, n=1)
    words = [f"{one}={value or 'N'}{f' ({_MEANING[one]})' if len(near) > 1 else ''}" for one in near]
    meant = f": did you mean {' or '.join(words)}?" if near else ""
    given = f"{name}={value}" if value else name
    return ConfigError(f"--parallel {given} is not known{meant}", hint=_format_parallel_option_names())


def _format_parallel_option_names() -> str:
    return f"it takes {', '.join(f'{name}=N' for name in (*_SIZES, _STAGES))}, sequence=true|false"


def _parse_axis_size(name: str, value: str) -> int:
    if _WHOLE.fullmatch(value) and 1 <= int(value) <= MOST_RANKS:
        return int(value)
    raise ConfigError(
        f"--parallel {name}={value} is not a valid size",
        hint=f"{name} takes a whole number from 1 to {MOST_RANKS}",
    )


def _parse_sequence_parallel_switch(value: str) -> bool:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ConfigError(f"--parallel sequence={value} is not a switch", hint="sequence takes true or false")


def parse_count(option: str, text: str) -> float:
    """Return a count such as `1e11`, `100B` or `2.5T`; raises ConfigError. Capitals do not matter.

    Example: `parse_count("--tokens=", "100B")` is 1e11.
    """
    found = _COUNT.fullmatch(text.strip())
    count = float(found[1]) * _SUFFIXES[found[2].upper()] if found else math.nan
    if 1 <= count <= _MOST:
        return count
    raise ConfigError(
        f"{option}{text} is not a count",
        hint="give a number of 1 or more, such as 1e11, or 100B: K, M, B and T are thousands, "
        f"millions, billions and trillions; at most {_MOST:g}",
    )


def check_range(option: str, value: float | None, least: float, most: float) -> None:
    """Check that a number lies within [least, most]; None does; raises ConfigError for NaN, too."""
    if value is None or least <= value <= most:
        return
    raise ConfigError(
        f"{option} {value:g} is not possible", hint=f"{option} takes a number from {least:g} to {most:g}"
    )


def check_whole_number(option: str, value: int | None, most: int) -> None:
    """Check that a whole number lies within [1, most]; None does; raises ConfigError."""
    if value is None or 1 <= value <= most:
        return
    raise ConfigError(
        f"{option} {value} is not possible", hint=f"{option} takes a whole number from 1 to {most}"
    )
