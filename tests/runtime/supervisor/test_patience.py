"""Promises of how an attempt begins where files cannot be written, for a moment or for good."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from runtime.conftest import Workshop

from hpckit.model.failure import Cause
from hpckit.model.states import RunState
from hpckit.record.launches import read_run_records
from hpckit.runtime.supervisor.patience import cause_of_supervisor_failure, retry_transient_file_errors


class Flaky:
    """Fails so often with this error, then works."""

    def __init__(self, number: int, times: int) -> None:
        self.number, self.left = number, times

    def work(self) -> str:
        """Try."""
        self.left -= 1
        if self.left >= 0:
            raise OSError(self.number, os.strerror(self.number))
        return "done"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_work_is_tried_again_where_its_error_may_pass(number: int) -> None:
    """A full disk that is cleaned up, a server that comes back: the work is done."""
    assert retry_transient_file_errors(Flaky(number, 1).work) == "done"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR, errno.EROFS])
def test_work_is_not_tried_again_where_its_error_stays(number: int) -> None:
    """Whom a folder does not belong to is told at once."""
    flaky = Flaky(number, 1)
    with pytest.raises(OSError, match=os.strerror(number)):
        retry_transient_file_errors(flaky.work)
    assert flaky.left == 0


def test_work_is_given_up_after_its_time() -> None:
    """What does not pass is an error at last."""
    with pytest.raises(OSError, match="No space"):
        retry_transient_file_errors(Flaky(errno.ENOSPC, 10**9).work, 1.0)


def test_failed_supervisor_is_no_unknown_cause() -> None:
    """A full disk has its own name; all else has a budget by default, so that it is requeued."""
    assert cause_of_supervisor_failure(OSError(errno.ENOSPC, "")) is Cause.disk_full
    assert cause_of_supervisor_failure(OSError(errno.EIO, "")) is Cause.launcher_lost
    assert cause_of_supervisor_failure(OSError("no number")) is Cause.launcher_lost


@pytest.mark.training
def test_attempt_waits_for_room_on_a_full_disk(tmp_path: Path, ranks: Any) -> None:
    """A disk that has room again a moment later costs a moment."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system here")
    try:
        launch = Workshop(disk / "project").freeze("def main(config, run): pass\n", **ranks(1))
        words = ["dd", "if=/dev/zero", f"of={disk / 'fill'}", "bs=4k"]
        subprocess.run(words, capture_output=True, check=False)  # until the disk is full
        process = Workshop(disk / "project").start(launch)
        threading.Timer(6.0, (disk / "fill").unlink).start()
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert read_run_records(launch)[0].state is RunState.completed
    finally:
        time.sleep(0.5)
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
