"""Promises of the sandbox's commands that are reached through a chroot."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpckit.sandbox.lifecycle import render_slurm_command_wrapper
from hpckit.sandbox.settings import Options


@pytest.mark.parametrize(("command", "code"), [("sacctmgr", 0), ("squeue", 0), ("sbatch", 1)])
def test_wrapper_asks_from_folders_that_the_chroot_does_not_show(
    tmp_path: Path, command: str, code: int
) -> None:
    """Questions work below /var/tmp or /opt; what starts processes there is refused by name."""
    text = render_slurm_command_wrapper(command, Options(), native=False)
    inner = next(line for line in text.splitlines() if line.startswith("exec /usr/bin/nsenter"))
    entered = text.replace(inner, "exec /bin/sh -c '").replace(f"/usr/bin/{command}", "/bin/pwd")
    script = tmp_path / "wrapper"
    script.write_text(entered.replace('[ "$(id -u)" != 0 ]', "false").replace("$PWD", "/nowhere"))
    done = subprocess.run(
        ["sh", str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert (done.stdout.strip() == "/") == (code == 0)
    assert ("is not visible to the sandbox nodes" in done.stderr) == (code == 1)
