"""Promises of observe.gpu_shares: runs that have a GPU together divide it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpckit.model.telemetry.vocabulary import GpuDevice, GpuVendor
from hpckit.observe.gpu_thread import GpuShares, gpu_use_notes_folder

WHOLE = GpuDevice(uuid="GPU-a", vendor=GpuVendor.nvidia, index=0, name="H100", slices=7)
OTHER = """
import sys, time
from pathlib import Path
from hpckit.model.telemetry.vocabulary import GpuDevice, GpuVendor
from hpckit.observe.gpu_thread import GpuShares
device = GpuDevice(uuid=sys.argv[2], vendor=GpuVendor.nvidia, index=0, name="H100")
shares = GpuShares(notes=Path(sys.argv[1]))
shares.count_gpu_seconds_of_run([device], 1.0)
print("noted", flush=True)
sys.stdin.readline()
if sys.argv[3] == "closes":
    shares.remove_gpu_use_notes()
    print("closed", flush=True)
    sys.stdin.readline()
"""


def other(folder: Path, uuid: str, end: str = "closes") -> subprocess.Popen[str]:
    """Start another run that has a GPU."""
    words = [sys.executable, "-c", OTHER, str(folder), uuid, end]
    pipe = subprocess.PIPE
    started = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "noted\n"
    return started


def go_on(process: subprocess.Popen[str]) -> None:
    """Let the other run do its next step."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("end", ["closes", "is killed"])
def test_runs_divide_a_gpu_while_they_have_it_together(tmp_path: Path, end: str) -> None:
    """Of two in equal parts; a run that has ended, or that was killed, counts no more."""
    folder = gpu_use_notes_folder(tmp_path)
    mine = GpuShares(notes=folder)
    assert mine.count_gpu_seconds_of_run([WHOLE], 10.0) == {"GPU-a": 0.0}
    assert mine.count_gpu_seconds_of_run([WHOLE], 20.0) == {"GPU-a": 10.0}
    beside, elsewhere = other(folder, "GPU-a", end), other(folder, "GPU-b")
    try:
        assert mine.count_gpu_seconds_of_run([WHOLE], 30.0) == {"GPU-a": 17.5}, "it came in the middle"
        assert mine.count_gpu_seconds_of_run([WHOLE], 40.0) == {"GPU-a": 22.5}
        if end == "closes":
            go_on(beside)
            assert beside.stdout is not None
            assert beside.stdout.readline() == "closed\n"
        else:
            beside.kill()
            beside.wait()
        assert mine.count_gpu_seconds_of_run([WHOLE], 50.0) == {"GPU-a": 30.0}
        assert mine.count_gpu_seconds_of_run([WHOLE], 60.0) == {"GPU-a": 40.0}
        assert len([*folder.glob("GPU-a.*")]) == 1
        mine.remove_gpu_use_notes()
        assert not [*folder.glob("GPU-a.*")]
    finally:
        for one in (beside, elsewhere):
            one.kill()
            one.communicate()


def test_notes_that_others_can_write_are_not_believed(tmp_path: Path) -> None:
    """Nor is a link: then each run counts as the only one."""
    folder = gpu_use_notes_folder(tmp_path)
    beside = other(folder, "GPU-a")
    try:
        folder.chmod(0o777)
        mine = GpuShares(notes=folder)
        mine.count_gpu_seconds_of_run([WHOLE], 1.0)
        assert mine.count_gpu_seconds_of_run([WHOLE], 2.0) == {"GPU-a": 1.0}
        (tmp_path / "link").symlink_to(folder)
        folder.chmod(0o700)
        linked = GpuShares(notes=tmp_path / "link")
        linked.count_gpu_seconds_of_run([WHOLE], 1.0)
        assert linked.count_gpu_seconds_of_run([WHOLE], 2.0) == {"GPU-a": 1.0}
    finally:
        beside.kill()
        beside.communicate()


def test_mig_devices_are_a_share_of_their_gpu() -> None:
    """By slices; a run that has the whole GPU has all of it, however it is divided."""
    part = GpuDevice(uuid="MIG-1", vendor=GpuVendor.nvidia, index=0, name="2g", parent="GPU-a", slices=2)
    by_parts = GpuShares(notes=None, by_parts=True)
    by_parts.count_gpu_seconds_of_run([WHOLE, part], 1.0)
    assert by_parts.count_gpu_seconds_of_run([WHOLE, part], 8.0) == {"GPU-a": pytest.approx(2.0)}
    assert GpuShares(notes=None).count_gpu_seconds_of_run([WHOLE, part], 8.0) == {}
