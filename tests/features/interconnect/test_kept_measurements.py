"""Measurements that are kept: appended, private, and read whatever else is in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpckit.features.interconnect.launch import (
    append_measurement,
    read_earlier_measurements,
    user_measurements_file,
)
from hpckit.features.interconnect.model import KeptMeasurement, MeasuredShape
from hpckit.model.plain import to_plain

SHAPE = MeasuredShape(cluster="lab", nodes=2, ranks=16, device="cuda", backend="nccl", gpu="H100")


def kept(rate: float) -> KeptMeasurement:
    """Return a measurement that reached this rate."""
    return KeptMeasurement(at="2026-01-01", shape=SHAPE, bus_bytes_per_s={"all_reduce": rate})


def test_kept_measurements_are_read_again_in_their_order(tmp_path: Path) -> None:
    """The file is the user's alone."""
    output = tmp_path / "outputs"
    assert read_earlier_measurements(output) == ()
    append_measurement(output, kept(1.0))
    append_measurement(output, kept(2.0))
    assert read_earlier_measurements(output) == (kept(1.0), kept(2.0))
    assert user_measurements_file(output).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"no json\n",
        b"[1]\n",
        b'{"at": 1}\n',
        b'{"at":"x","shape":{},"bus_bytes_per_s":{}}\n',
        b"[" * 5000 + b"\n",
        b"\xff\xfe\x00\n",
        json.dumps({**to_plain(kept(1.0)), "bus_bytes_per_s": {"all_reduce": "fast"}}).encode() + b"\n",
        json.dumps({**to_plain(kept(1.0)), "bus_bytes_per_s": {"all_reduce": 1e999}}).encode() + b"\n",
    ],
)
def test_lines_that_are_no_measurement_are_left_out(tmp_path: Path, line: bytes) -> None:
    """Those before and after one are read."""
    append_measurement(tmp_path, kept(1.0))
    with user_measurements_file(tmp_path).open("ab") as file:
        file.write(line)
    append_measurement(tmp_path, kept(3.0))
    assert read_earlier_measurements(tmp_path) == (kept(1.0), kept(3.0))


def test_links_and_pipes_are_neither_read_nor_written(tmp_path: Path) -> None:
    """They may lead anywhere, or wait for a writer."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    append_measurement(elsewhere, kept(1.0))
    user_measurements_file(tmp_path).symlink_to(user_measurements_file(elsewhere))
    assert read_earlier_measurements(tmp_path) == ()
    with pytest.raises(PermissionError):
        append_measurement(tmp_path, kept(2.0))
    assert read_earlier_measurements(elsewhere) == (kept(1.0),)
    user_measurements_file(tmp_path).unlink()
    os.mkfifo(user_measurements_file(tmp_path))
    assert read_earlier_measurements(tmp_path) == ()
