"""Diagnoses of runs: gathers what is known about each, which planning.diagnosis judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from hpckit.errors import FrozenFolderError
from hpckit.model.cluster.gpus_asked import asks_for_part, gpus_asked
from hpckit.model.diagnosis.verdict import RunFindings, Straggler
from hpckit.model.events import StragglerFound
from hpckit.model.goodput import Goodput
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plan import SharedJobSpec
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RunState
from hpckit.model.telemetry.rank_steps import timed_phases
from hpckit.model.telemetry.usage import EnergySum, NodeUsage, RunUsage
from hpckit.planning.diagnosis.diagnose import diagnose
from hpckit.planning.diagnosis.evidence import RunEvidence, run_allocation, time_shares
from hpckit.planning.diagnosis.usage import (
    energy_bill,
    gpu_uses,
    host_uses,
    lost_share,
    rank_steps,
    run_energy,
    run_telemetry,
    samples_per_step,
)
from hpckit.record.attempts import read_attempts
from hpckit.record.launches import Launch, load_settings, read_launch_history
from hpckit.values import replace
from hpckit.views.telemetry import nccl_transport, run_usage


def findings(
    launch: Launch,
    views: Iterable[RunView],
    accounts: Mapping[int, Goodput],
    usages: Mapping[int, RunUsage] | None = None,
) -> Mapping[int, RunFindings]:
    """Return the findings on each of these runs that has an account, by index.

    `usages` is what they used, if that is already known.
    """
    if not accounts:
        return {}
    usages = {} if usages is None else usages
    history = read_launch_history(launch)
    return {
        index: run_findings(launch, history, view, accounts[index], usage=usages.get(index))
        for view in views
        if (index := view.record.index) in accounts
    }


def run_findings(
    launch: Launch,
    history: LaunchHistory,
    view: RunView,
    account: Goodput,
    *,
    usage: RunUsage | None = None,
) -> RunFindings:
    """Return the findings on one run; `usage` is what it used, if that is already known."""
    index = view.record.index
    usage = run_usage(launch, index) if usage is None else usage
    evidence = run_evidence(launch, history, view, account, usage.nodes)
    shared = _shared(launch, history, index)
    settings = load_settings(launch, index)[0]
    asked = settings.resources
    energy = EnergySum()
    if not asks_for_part(asked):  # else its share is not known
        energy = run_energy(usage.attempts, 1 if shared is None else 1 / shared.runs_per_gpu)
    steps = None if view.record.step is None else view.record.step + 1
    return RunFindings(
        verdicts=diagnose(evidence),
        stragglers=evidence.stragglers,
        telemetry=run_telemetry(evidence.gpus, evidence.ranks, energy, usage.seconds),
        energy=energy_bill(
            energy,
            settings.cluster,
            lost=lost_share(account),
            steps=steps,
            step_samples=samples_per_step(evidence.ranks),
        ),
        gpus_asked=(gpus_asked(asked) or 0) * asked.nodes if view.record.attempt else 0,
        phases=timed_phases(evidence.ranks),
    )


def run_evidence(
    launch: Launch,
    history: LaunchHistory,
    view: RunView,
    account: Goodput,
    usages: Sequence[NodeUsage] = (),
) -> RunEvidence:
    """Return all that is known about a run; `usages` are its nodes' telemetry."""
    index = view.record.index
    shared, asked = _shared(launch, history, index), None
    if launch.cluster.kind is not ClusterKind.local:  # this machine allocates nothing
        asked = history.job_of(index).resources if shared is None else shared.each
    completed = view.state is RunState.completed and not view.record.reason
    allocation = None if asked is None else run_allocation(asked, account, completed=completed)
    cores = None if allocation is None else allocation.cpus_per_node
    hosts = host_uses(usages, cores=cores, shared=shared is not None)
    fast = any(host.infiniband_ports for host in hosts)  # else NCCL's log decides nothing
    settings = load_settings(launch, index)[0]
    ranks = rank_steps(usages)
    return RunEvidence(
        ranks=ranks,
        gpus=() if asks_for_part(settings.resources) else gpu_uses(usages),
        hosts=hosts,
        times=time_shares(account),
        allocation=allocation,
        stragglers=_stragglers(launch, view.record),
        nccl=nccl_transport(launch, index) if fast else None,
        run=view.record.id,
        settings=settings,
        layout=None if view.record.layout is None else view.record.layout.layout,
        trained=bool(ranks) or _trained(view.record, settings),
    )


def _trained(record: RunRecord, settings: LaunchConfig) -> bool:
    """Whether a step was done; of a command that reports none, whether it was started at all."""
    if record.step is not None or record.metrics:
        return True
    return settings.entry_point is None and record.round is not None


def _stragglers(launch: Launch, record: RunRecord) -> tuple[Straggler, ...]:
    """Return the stragglers of all attempts; the record has those of the latest."""
    if record.attempt < 2:  # noqa: PLR2004
        return record.stragglers
    known = replace(record, stragglers=())
    with suppress(FrozenFolderError):
        for _, told in read_attempts(launch.paths.run(record.index)):
            known = known.fold(event for event in told if isinstance(event, StragglerFound))
    return known.stragglers


def _shared(launch: Launch, history: LaunchHistory, index: int) -> SharedJobSpec | None:
    """Return how a run shares its job with others; None if it does not."""
    if launch.cluster.kind is ClusterKind.local:
        return None
    return history.job_of(index).shared_job
