"""Runs commands, and starts, recognises and ends the processes of the sandbox.

Only processes that were recorded at their start, or that run in one of the sandbox's own network
namespaces, are ever ended. Processes are never looked up by name.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hpckit.record.process import read_process_start_id
from hpckit.sandbox.settings import BIN_DIR, LOG_DIR, MYSQL_SOCKET, PID_DIR, SLURM_CONF, SandboxError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DAEMON_ENVIRONMENT = {
    "PATH": f"{BIN_DIR}:{SYSTEM_PATH}",
    "LANG": "C.UTF-8",
    "HOME": "/root",
    "SLURM_CONF": str(SLURM_CONF),
    "MYSQL_UNIX_PORT": str(MYSQL_SOCKET),
}


def run_command(
    argv: Sequence[str], *, check: bool = True, timeout: float = 60.0, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; a failure raises SandboxError with its last lines."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PATH": path}
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            # A folder that a release's chroot has, too: the current one may not be visible there.
            cwd="/",
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            check=False,
        )
    except FileNotFoundError:
        raise SandboxError(f"the program {argv[0]!r} is missing: run 'up', it installs it") from None
    except subprocess.TimeoutExpired:
        raise SandboxError(f"{' '.join(argv)!r} did not answer within {timeout:.0f} s") from None
    if check and done.returncode != 0:
        said = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise SandboxError(f"{' '.join(argv)!r} failed (exit {done.returncode}): {said}")
    return done


def start_daemon(name: str, argv: Sequence[str], *, user: str | None = None) -> None:
    """Start a daemon unless its recorded process is alive; its record and log have its name."""
    if find_recorded_pid(name) is not None:
        return
    # Slurm's daemons log next to it, in NAME.log.
    with (LOG_DIR / f"{name}.out").open("wb") as output:
        child = subprocess.Popen(  # it outlives this process on purpose
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env=DAEMON_ENVIRONMENT,
            user=user,
            group=user,
            extra_groups=[] if user else None,
        )
    record = {"pid": child.pid, "started": read_process_start_id(child.pid), "boot": _read_boot_id()}
    _daemon_record_path(name).write_text(json.dumps(record))
    child.returncode = 0  # never awaited: without this, Popen warns when it is collected


def find_recorded_pid(name: str) -> int | None:
    """Return the pid recorded under that name, if that very process is still alive."""
    try:
        record = json.loads(_daemon_record_path(name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    started = read_process_start_id(record["pid"])
    alive = started is not None and (started, _read_boot_id()) == (record["started"], record["boot"])
    return record["pid"] if alive else None


def stop_daemon(name: str, *, patience: float = 15.0) -> None:
    """End a recorded process: TERM, and KILL after `patience` seconds."""
    pid = find_recorded_pid(name)
    if pid is not None:
        _signal_process(pid, signal.SIGTERM)
        if not poll_until_ready(lambda: find_recorded_pid(name) is None, patience):
            _signal_process(pid, signal.SIGKILL)
            poll_until_ready(lambda: find_recorded_pid(name) is None, 5.0)
    _daemon_record_path(name).unlink(missing_ok=True)


def kill_in_network_namespace(namespace: str) -> int:
    """Kill everything in a network namespace; return the number of killed processes."""
    killed: set[int] = set()
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        alive = pids_in_network_namespace(namespace)
        if not alive:
            break
        for pid in alive:
            _signal_process(pid, signal.SIGKILL)
        killed.update(alive)
        time.sleep(0.05)
    return len(killed)


def pids_in_network_namespace(namespace: str) -> list[int]:
    """List every living process in that network namespace."""
    wanted, found = Path(f"/run/netns/{namespace}"), []
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(OSError):  # neither of them need be there
            if wanted.samefile(f"/proc/{pid}/ns/net") and read_process_start_id(pid) is not None:
                found.append(pid)
    return found


def is_mounted(place: Path) -> bool:
    """Whether something is mounted there, and no later mount hides it; finds binds and files."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return place.exists() and any(line.split()[4] == str(place) for line in lines)


def poll_until_ready(ready: Callable[[], bool], patience: float, *, interval: float = 0.1) -> bool:
    """Poll until ready or for `patience` seconds; return whether it became ready."""
    deadline = time.monotonic() + patience
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def wait_for_daemon(name: str, ready: Callable[[], bool], patience: float) -> None:
    """Wait until a daemon is ready; raises SandboxError with its last log lines if not in time."""
    if poll_until_ready(lambda: ready() or find_recorded_pid(name) is None, patience) and ready():
        return
    state = "does not answer" if find_recorded_pid(name) else "ended at once"
    raise SandboxError(f"{name} {state}: {_read_last_log_lines(name)} (logs: {LOG_DIR})")


def _read_last_log_lines(name: str) -> str:
    for suffix in ("log", "out"):
        path = LOG_DIR / f"{name}.{suffix}"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        if lines:
            return " / ".join(lines[-3:])
    return "it printed nothing"


def _daemon_record_path(name: str) -> Path:
    return PID_DIR / f"{name}.json"


def _read_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _signal_process(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
