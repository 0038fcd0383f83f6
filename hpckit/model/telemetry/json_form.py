"""The JSON form of telemetry: one line for each record, told apart by `kind`.

`segment`, `device` and `event` have the fields of their dataclasses. A `row` names each gauge and
each counter once, with a list over the GPUs in the order of `uuids` (null: this one has it not):

    {"v":1,"kind":"row","start":"…","end":"…",
     "host":{"samples":6,"gauges":{"cpu_share":[0.1,0.2,0.4,0.4]},"counters":{"job_cpu_s":12.5}},
     "gpus":{"uuids":["GPU-1","GPU-2"],"samples":[6,6],"gauges":{"power_w":[[70,300,690,690],71]},
             "counters":{"energy_j":[5120.5,812.3]},"reasons":{"power_cap":[0.5,0]},
             "troubles":{"GPU-2":["remap_pending"]}},
     "ranks":{"rank":[0,1],"first_step":[40,40],"steps":[60,60],"seconds":[29.8,29.8],
              "data_s":[1.2,0.9],"phases":{"forward":[9.1,9.2]}}}

A `total` has the fields of a row, counters as increases, and `measured_s`.

A spread is `[min, mean, max, p95]`; followed by its count where that is not the row's `samples`; a
bare number where all four are equal. Gauges keep four significant digits, counters and shares
three decimals: more would be noise, and most of the size of a file. A line with a number that
nothing measures, such as a power below zero, is damaged: none of it is read. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from hpckit.model.plain import LARGEST, from_plain, to_plain
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GaugeSpread,
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuRow,
    GpuTrouble,
    HostCounter,
    HostGauge,
    HostRow,
    TelemetryEvent,
    TelemetryRecord,
    TelemetryRow,
    TelemetrySegment,
    TelemetryTotal,
)

VERSION = 1
_DIGITS = 4
_DECIMALS = 3
_EXACT = ("rank", "gpu", "group", "first_step", "steps", "samples")
_WHOLE = ("rank", "first_step", "steps", "samples")
_SECONDS = ("seconds", "data_s", "checkpoint_s", "waiting_s", "own_s")
_LIMITS: Mapping[str, tuple[float, float]] = {
    "_share": (0, 2),
    "_w": (0, 1e6),
    "_c": (-300, 1e5),
    "_s": (0, 1e12),
    "": (0, LARGEST),
}
"""The least and the largest number by the end of its name, which is its unit.

A share that is the increase of two counters may be a little above 1.
"""

_KINDS: Mapping[str, type[TelemetrySegment | GpuDevice | TelemetryEvent]] = {
    "segment": TelemetrySegment,
    "device": GpuDevice,
    "event": TelemetryEvent,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}

_Word = TypeVar("_Word", bound=StrEnum)


def encode_telemetry(record: TelemetryRecord) -> dict[str, Any]:
    """Return a record as plain JSON values, with `v` and `kind` first."""
    if isinstance(record, TelemetryRow):
        return {"v": VERSION, "kind": "row", **_telemetry_row_to_json(record)}
    if isinstance(record, TelemetryTotal):
        measured_s = (
            {} if record.measured_s is None else {"measured_s": _round_to_three_decimals(record.measured_s)}
        )
        return {"v": VERSION, "kind": "total", **measured_s, **_telemetry_row_to_json(record.row)}
    name, fields = _NAMES[type(record)], to_plain(record)
    if isinstance(record, TelemetryEvent):
        fields = {"at": fields["at"], "what": fields.pop("kind"), **fields}
    return {"v": VERSION, "kind": name, **fields}


def decode_telemetry(line: Mapping[str, Any]) -> TelemetryRecord | None:
    """Return the record of a line, or None if this version cannot read it.

    Gauges, counters, reasons and troubles of a newer hpckit are left out.
    """
    try:
        if line.get("kind") == "row":
            return _telemetry_row_from_json(line)
        if line.get("kind") == "total":
            lasted = line.get("measured_s")
            measured_s = None if lasted is None else _check_number_in_unit("measured_s", lasted)
            return TelemetryTotal(row=_telemetry_row_from_json(line), measured_s=measured_s)
        kind = _KINDS.get(str(line.get("kind")))
        if kind is None:
            return None
        return from_plain(kind, {**line, "kind": line.get("what")})
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None


def _telemetry_row_to_json(row: TelemetryRow) -> dict[str, Any]:
    plain = {"start": to_plain(row.start), "end": to_plain(row.end)}
    if row.host is not None:
        plain["host"] = {
            "samples": row.host.samples,
            "gauges": {
                name: _gauge_spread_to_json(one, row.host.samples)
                for name, one in _list_named_gauges(row.host)
            },
            "counters": {name: _round_to_three_decimals(value) for name, value in row.host.counters.items()},
        }
    if row.gpus:
        plain["gpus"] = _gpu_rows_to_json(row.gpus)
    if row.ranks:
        plain["ranks"] = _rank_steps_to_json(row.ranks)
    return plain


def _list_named_gauges(row: GpuRow | HostRow) -> Iterable[tuple[str, GaugeSpread]]:
    return ((str(name), spread) for name, spread in row.gauges.items())


def _gpu_rows_to_json(rows: Sequence[GpuRow]) -> dict[str, Any]:
    plain: dict[str, Any] = {"uuids": [row.uuid for row in rows], "samples": [row.samples for row in rows]}
    gauges = [
        {name: _gauge_spread_to_json(one, row.samples) for name, one in _list_named_gauges(row)}
        for row in rows
    ]
    counters = [
        {str(key): _round_to_three_decimals(value) for key, value in row.counters.items()} for row in rows
    ]
    plain["gauges"] = _rows_to_columns(gauges)
    plain["counters"] = _rows_to_columns(counters)
    reasons = {reason for row in rows for reason in row.reasons}
    plain["reasons"] = {
        reason: [round(row.reasons.get(reason, 0), _DECIMALS) for row in rows] for reason in sorted(reasons)
    }
    plain["troubles"] = {row.uuid: sorted(row.troubles) for row in rows if row.troubles}
    return plain


def _rank_steps_to_json(ranks: Sequence[RankSteps]) -> dict[str, Any]:
    plain: dict[str, Any] = {name: [getattr(rank, name) for rank in ranks] for name in _EXACT}
    for name in _SECONDS:
        plain[name] = [_round_seconds(getattr(rank, name)) for rank in ranks]
    known = {name: values for name, values in plain.items() if any(v is not None for v in values)}
    phases = {name for rank in ranks for name in rank.phases}
    if phases:
        known["phases"] = {
            name: [_round_seconds(rank.phases.get(name)) for rank in ranks] for name in sorted(phases)
        }
    return known


def _round_seconds(value: float | None) -> float | None:
    return None if value is None else _round_to_three_decimals(value)


def _rows_to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _gauge_spread_to_json(spread: GaugeSpread, samples: int) -> Any:
    values = [_round_to_four_digits(one) for one in (spread.min, spread.mean, spread.max, spread.p95)]
    if spread.count != samples:
        return [*values, spread.count]
    return values[0] if len(set(values)) == 1 else values


def _round_to_four_digits(value: float) -> float:
    """Return a value with four significant digits; an int where it is whole."""
    if value == 0 or not math.isfinite(value):
        return 0
    return _int_if_whole(round(value, _DIGITS - 1 - math.floor(math.log10(abs(value)))))


def _round_to_three_decimals(value: float) -> float:
    return _int_if_whole(round(value, _DECIMALS)) if math.isfinite(value) else 0


def _int_if_whole(value: float) -> float:
    return int(value) if value == int(value) else value


def _telemetry_row_from_json(line: Mapping[str, Any]) -> TelemetryRow:
    host, gpus = line.get("host"), line.get("gpus")
    ends = from_plain(TelemetryRow, {"start": line["start"], "end": line["end"]})
    return TelemetryRow(
        start=ends.start,
        end=ends.end,
        host=None if host is None else _host_row_from_json(host),
        gpus=()
        if gpus is None
        else tuple(_gpu_row_from_json(gpus, place) for place in range(len(gpus["uuids"]))),
        ranks=_all_rank_steps_from_json(line.get("ranks") or {"rank": []}),
    )


def _all_rank_steps_from_json(plain: Mapping[str, Any]) -> tuple[RankSteps, ...]:
    phases = plain.get("phases", {})
    columns = {name: plain[name] for name in (*_EXACT, *_SECONDS) if name in plain}
    return tuple(
        _one_rank_steps_from_json(
            _pick_row_from_columns(columns, place), _pick_row_from_columns(phases, place)
        )
        for place in range(len(plain["rank"]))
    )


def _one_rank_steps_from_json(plain: Mapping[str, Any], phases: Mapping[str, Any]) -> RankSteps:
    for value in (*(plain[name] for name in _SECONDS if name in plain), *phases.values()):
        _check_number_in_unit("_s", value)
    for name in _WHOLE:
        _to_nonnegative_int(plain.get(name, 0))
    return from_plain(RankSteps, {**plain, "node": "", "phases": phases})


def _host_row_from_json(plain: Mapping[str, Any]) -> HostRow:
    samples = _check_sample_count(plain["samples"])
    return HostRow(
        samples=samples,
        gauges=_gauge_spreads_from_json(HostGauge, plain["gauges"], samples),
        counters=_numbers_from_json(HostCounter, plain["counters"]),
    )


def _gpu_row_from_json(plain: Mapping[str, Any], place: int) -> GpuRow:
    uuid, samples = str(plain["uuids"][place]), _check_sample_count(plain["samples"][place])
    reasons = _numbers_from_json(
        ClockReason, _pick_row_from_columns(plain.get("reasons", {}), place), "_share"
    )
    troubles = plain.get("troubles", {}).get(uuid, ())
    return GpuRow(
        uuid=uuid,
        samples=samples,
        gauges=_gauge_spreads_from_json(GpuGauge, _pick_row_from_columns(plain["gauges"], place), samples),
        counters=_numbers_from_json(GpuCounter, _pick_row_from_columns(plain["counters"], place)),
        reasons={reason: share for reason, share in reasons.items() if share},
        troubles=frozenset(_select_known_enum_members(GpuTrouble, troubles)),
    )


def _pick_row_from_columns(columns: Mapping[str, Sequence[Any]], place: int) -> dict[str, Any]:
    return {name: column[place] for name, column in columns.items() if column[place] is not None}


def _select_known_enum_members(kind: type[_Word], names: Iterable[str]) -> list[_Word]:
    members = kind.__members__
    return [kind(name) for name in names if name in members]


def _numbers_from_json(
    kind: type[_Word], plain: Mapping[str, Any], unit: str | None = None
) -> dict[_Word, float]:
    return {
        name: _check_number_in_unit(unit or name, plain[name])
        for name in _select_known_enum_members(kind, plain)
    }


def _gauge_spreads_from_json(
    kind: type[_Word], plain: Mapping[str, Any], samples: int
) -> dict[_Word, GaugeSpread]:
    return {
        name: _gauge_spread_from_json(name, plain[name], samples)
        for name in _select_known_enum_members(kind, plain)
    }


def _gauge_spread_from_json(name: str, plain: Any, samples: int) -> GaugeSpread:
    values = plain if isinstance(plain, list) else [plain] * 4
    least, mean, most, p95 = (_check_number_in_unit(name, value) for value in values[:4])
    count = _check_sample_count(values[4]) if len(values) > 4 else samples  # noqa: PLR2004  # see above
    return GaugeSpread(min=least, mean=mean, max=most, p95=p95, count=count)


def _check_number_in_unit(name: str, value: Any) -> float:
    """Return a number that its unit can have; raises TypeError and ValueError for any other."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is not a number")
    least, most = _find_unit_limits(name)
    if not least <= value <= most:
        raise ValueError(f"{name} cannot be {value!r}")
    return value


def _to_nonnegative_int(value: Any) -> int:
    return int(_check_number_in_unit("", value))


def _check_sample_count(value: Any) -> int:
    """Return a number of samples; raises ValueError for none: what was never sampled has no row."""
    if (count := _to_nonnegative_int(value)) < 1:
        raise ValueError(f"{count} samples")
    return count


@cache
def _find_unit_limits(name: str) -> tuple[float, float]:
    return next(limits for end, limits in _LIMITS.items() if name.endswith(end))
