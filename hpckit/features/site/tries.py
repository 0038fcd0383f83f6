"""Which options of sbatch a site takes, tried by `sbatch --test-only`: at most five calls.

Plugins of a site may refuse what Slurm itself takes; no configuration that users can read says so.
"""

from __future__ import annotations

from hpckit.errors import SchedulerAwayError, SchedulerRefusedError
from hpckit.features.site.facts import NodeKind, SiteFacts
from hpckit.model.settings import GpuOption
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.test_only import UNDECIDED
from hpckit.values import dataclass

_CPUS = "--cpus-per-task=1"
_EXCLUSIVE = "--exclusive"
_LONGEST = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedOptions:
    """A job that was tried: its `options`, whether sbatch `takes` them (null: undecided), its words."""

    partition: str
    options: tuple[str, ...]
    takes: bool | None
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """What was tried, and what follows: `gpu_option`, and whether a job has to be `exclusive`."""

    tried: tuple[TriedOptions, ...] = ()
    gpu_option: GpuOption = GpuOption.gpus_per_node
    exclusive: bool = False

    def list_probe_options(self, kind: NodeKind) -> list[str]:
        """Return the options of a small job on such a node: one of its GPUs, if it has some."""
        typed = next((name for name in kind.gpu_types if name != "gpu"), None)
        one = f"{typed}:1" if typed else "1"
        gpus = f"--gres=gpu:{one}" if self.gpu_option is GpuOption.gres else f"--gpus-per-node={one}"
        return [*([gpus] if kind.gpus else []), *([_EXCLUSIVE] if self.exclusive else [])]


def try_options(facts: SiteFacts, commands: SlurmCommands, account: str | None = None) -> Tries:
    """Try in the partition that most runs will use; an empty result if there is none to try."""
    kind = _choose_kind_to_try(facts)
    if kind is None:
        return Tries()
    trial = _Trial(facts=facts, commands=commands, partition=kind.partition, account=account, tried=[])
    try:
        gpu_option, exclusive = _find_options_that_it_takes(trial, kind)
        if "block" in facts.settings.get("TopologyPlugin", "") and trial.tried[0].takes is not None:
            trial.try_job("--segment=1")
    except SchedulerAwayError:
        return Tries(tried=tuple(trial.tried))
    return Tries(tried=tuple(trial.tried), gpu_option=gpu_option, exclusive=exclusive)


def _choose_kind_to_try(facts: SiteFacts) -> NodeKind | None:
    """Return nodes with GPUs, of the default partition if it has some; else any of that partition."""
    default = facts.default_partition
    kinds = sorted(facts.open_kinds, key=lambda kind: (not kind.gpus, kind.partition != default))
    return kinds[0] if kinds else None


def _find_options_that_it_takes(trial: _Trial, kind: NodeKind) -> tuple[GpuOption, bool]:
    """Try what a job of hpckit asks with; if that is refused, one other thing after the other."""
    usual, by_gres = (Tries(gpu_option=option).list_probe_options(kind) for option in GpuOption)
    taken = trial.try_job(_CPUS, *usual)
    if taken:
        trial.try_job(_CPUS, *usual, _EXCLUSIVE)
    if taken is not False:
        return GpuOption.gpus_per_node, False
    if kind.gpus and trial.try_job(_CPUS, *by_gres):
        return GpuOption.gres, False
    if trial.try_job(_CPUS, *usual, _EXCLUSIVE):
        return GpuOption.gpus_per_node, True
    trial.try_job(*usual)
    return GpuOption.gpus_per_node, False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    facts: SiteFacts
    commands: SlurmCommands
    partition: str
    account: str | None
    tried: list[TriedOptions]

    def try_job(self, *options: str) -> bool | None:
        """Return whether sbatch takes a job of a minute with these options; None if it may be busy nodes."""
        account = [f"--account={self.account}"] if self.account else []
        job = ("--nodes=1", "--ntasks-per-node=1", "--time=1", "--job-name=hpckit-init", "--wrap=true")
        where = (f"--partition={self.partition}", *account)
        takes: bool | None = True
        said = ""
        try:
            self.commands.run("sbatch", "--test-only", *where, *job, *options)
        except SchedulerRefusedError as refusal:
            said = refusal.message.partition("sbatch: ")[2][:_LONGEST] or refusal.message[:_LONGEST]
            undecided = self._some_nodes_are_away() and any(mark in said.lower() for mark in UNDECIDED)
            takes = None if undecided else False
        self.tried.append(TriedOptions(partition=self.partition, options=options, takes=takes, said=said))
        return takes

    def _some_nodes_are_away(self) -> bool:
        nodes = (node for node in self.facts.site.nodes or () if node.partition == self.partition)
        return any(not node.accepts_jobs for node in nodes)
