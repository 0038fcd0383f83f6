"""Small jobs that report what only a node knows: one for each kind of node of a partition.

It waits with a bound, and leaves neither a job nor a file behind, however it ends.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp

from hpckit.context import Context
from hpckit.errors import SchedulerError, UsageError
from hpckit.features.site.facts import NodeKind, SiteFacts
from hpckit.features.site.tries import Tries
from hpckit.model.counted import format_count
from hpckit.model.run import Observation
from hpckit.patterns import lazy_pattern
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.clusters import parse_sbatch_answer
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import observe_jobs
from hpckit.values import dataclass, replace

_SCRIPT = Path(__file__).with_name("probe.sh")
_ASK_S, _LOOK_S = 10.0, 1.0
_MOST_KINDS = 8
_MOST_BYTES = 65536
_CLOCK_S = 30.0
"""A clock that differs by more than that from the file server's is said."""
_LINE = lazy_pattern(r"(\w+)=(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProbe:
    """What a node said, by key with its values; `problem` is why it said nothing, or too little."""

    partition: str
    kind: NodeKind
    job: str = ""
    said: Mapping[str, tuple[str, ...]] | None = None
    clock_offset_s: float | None = None
    problem: str = ""

    def without_user(self, name: str, home: str) -> NodeProbe:
        """Return the same without the user's name and home folder."""
        if self.said is None:
            return self

        def _hide(text: str) -> str:
            text = text.replace(home, "$HOME") if home.strip("/") else text
            return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "$USER", text)

        said = {key: tuple(map(_hide, values)) for key, values in self.said.items() if key != "python"}
        return replace(self, said=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOrder:
    """Where to look, and how long to wait for it; `account` and `tries` are of the jobs."""

    partitions: tuple[str, ...]
    patience: timedelta
    tries: Tries
    account: str | None = None


def probe_nodes(
    order: ProbeOrder, facts: SiteFacts, commands: SlurmCommands, context: Context
) -> tuple[NodeProbe, ...]:
    """Submit the jobs, wait for them, and return what they said; raises UsageError for a partition."""
    kinds = list(_list_kinds_to_probe(order.partitions, facts))
    probes: list[NodeProbe] = []
    with _make_folder(context) as folder:
        try:
            for kind in kinds:
                probes.append(_submit_probe(kind, kinds, folder, order, commands))  # noqa: PERF401  # Ctrl-C
            waiting = {probe.job for probe in probes if probe.job}
            most = f"{order.patience.total_seconds():g} s at most"
            if waiting:
                context.note(f"waiting for {format_count(len(waiting), 'small job')}, {most}")
            seen = _wait_for_jobs(waiting, folder, order.patience, commands, context)
            probes = [_read_probe(probe, folder, seen) for probe in probes]
        finally:
            with suppress(SchedulerError):
                cancel_jobs([probe.job for probe in probes if probe.job and probe.said is None], commands)
    return tuple(probes)


def _list_kinds_to_probe(partitions: Sequence[str], facts: SiteFacts) -> Iterator[NodeKind]:
    there = [kind.partition for kind in facts.kinds or ()]
    for name in partitions:
        if name not in there:
            known = ", ".join(sorted(set(there))) or "none that Slurm shows"
            raise UsageError(
                f"--probe {name}: there is no such partition with nodes", hint=f"partitions: {known}"
            )
    found = [kind for kind in facts.kinds or () if kind.partition in partitions]
    if len(found) > _MOST_KINDS:
        raise UsageError(
            f"--probe would start {len(found)} jobs, one for each kind of node; at most {_MOST_KINDS}",
            hint="name fewer partitions",
        )
    yield from found


@contextmanager
def _make_folder(context: Context) -> Iterator[Path]:
    """Make a folder for scripts and answers beside the user's files, as nodes have to see it."""
    folder = Path(mkdtemp(prefix=".hpckit-init-", dir=context.cwd))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _submit_probe(
    kind: NodeKind, kinds: Sequence[NodeKind], folder: Path, order: ProbeOrder, commands: SlurmCommands
) -> NodeProbe:
    number = kinds.index(kind)
    probe = NodeProbe(partition=kind.partition, kind=kind)
    others = [one.names for one in kinds if one.partition == kind.partition and one is not kind and one.names]
    options = [
        *(f"--partition={kind.partition}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--time=2"),
        *("--job-name=hpckit-init", "--no-requeue", "--parsable", f"--chdir={folder}"),
        f"--output={_escape(folder)}/{number}-%j.txt",
        *([f"--account={order.account}"] if order.account else []),
        *([f"--exclude={','.join(others)}"] if others else []),
        *order.tries.list_probe_options(kind),
    ]
    try:
        answer = commands.run("sbatch", *options, str(_SCRIPT), sys.executable, str(folder))
    except SchedulerError as error:
        return replace(probe, problem=error.message)
    job = answer.strip().splitlines()[-1].partition(";")[0] if answer.strip() else ""
    if not job.isdecimal():  # a site's wrapper that does not know --parsable
        job = (parse_sbatch_answer(answer) or ("",))[0]
    return replace(probe, job=job, problem="" if job else f"sbatch answered {answer.strip()!r}")


def _escape(folder: Path) -> str:
    return str(folder).replace("%", "%%")


def _wait_for_jobs(
    jobs: set[str], folder: Path, patience: timedelta, commands: SlurmCommands, context: Context
) -> dict[str, Observation]:
    """Return what Slurm says of the jobs whose answers are not there when the time is over."""
    until = context.now() + patience
    seen: dict[str, Observation] = {}
    asked, ended = context.now(), False
    while missing := [job for job in jobs if not _is_complete(job, folder)]:
        context.sleep(_LOOK_S)
        now = context.now()
        if now < until and (now - asked).total_seconds() < _ASK_S:
            continue
        if ended:  # ten seconds ago: what they wrote would be seen by now
            break
        asked = now
        with suppress(SchedulerError):
            seen = observe_jobs(missing, commands, now)
        ended = all(job in seen and seen[job].state.ended for job in missing)
        if now >= until:
            break
    return seen


def _read_answer(job: str, folder: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for file in folder.glob(f"*-{job}.txt"):
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES).decode(errors="replace")
        for line in text.splitlines():
            if (match := _LINE.fullmatch(line)) is not None and match[2].strip():
                values = (*found.get(match[1], ()), " ".join(match[2].split()))
                found[match[1]] = tuple(dict.fromkeys(values))
    return found


def _is_complete(job: str, folder: Path) -> bool:
    return "end" in _read_answer(job, folder)


def _read_probe(probe: NodeProbe, folder: Path, seen: Mapping[str, Observation]) -> NodeProbe:
    if not probe.job:
        return probe
    said = _read_answer(probe.job, folder)
    if "end" not in said:
        return replace(probe, problem=_explain_silence(probe.job, seen.get(probe.job)))
    written = [file.stat().st_mtime for file in folder.glob(f"*-{probe.job}.txt")]
    clock = said.get("clock", ("",))[0]
    offset = float(clock) - written[0] if clock.isdecimal() and written else 0.0
    wrong = offset if abs(offset) >= _CLOCK_S else None
    return replace(probe, said={k: v for k, v in said.items() if k != "end"}, clock_offset_s=wrong)


def _explain_silence(job: str, seen: Observation | None) -> str:
    if seen is None:
        return f"job {job} wrote nothing, and Slurm no longer has it"
    if seen.state.ended:
        return (
            f"job {job} ended as {seen.state.text}, and what it wrote is not seen here: is this folder on a "
            "file system that nodes see?"
        )
    why = f" ({seen.reason})" if seen.reason else ""
    return f"job {job} was still {seen.state.text}{why} when the time to wait was over; it was cancelled"
