"""Diagnoses of runs: gathers what is known about each, which planning.diagnosis judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from hpckit.errors import FrozenFolderError
from hpckit.model.cluster.gpus_asked import requested_gpus_per_node, requests_part_of_gpu
from hpckit.model.diagnosis.verdict import RunFindings, Straggler
from hpckit.model.events import StragglerFound
from hpckit.model.goodput import Goodput
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plan import SharedJobSpec
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RunState
from hpckit.model.telemetry.rank_steps import average_timed_phases
from hpckit.model.telemetry.usage import EnergySum, NodeUsage, RunUsage
from hpckit.planning.diagnosis.diagnose import diagnose_run
from hpckit.planning.diagnosis.evidence import RunEvidence, build_run_allocation, build_time_shares
from hpckit.planning.diagnosis.usage import (
    compute_energy_bill,
    list_step_reports_of_ranks,
    samples_per_step,
    share_of_lost_time,
    sum_run_energy,
    summarize_gpu_use,
    summarize_host_use,
    summarize_telemetry,
)
from hpckit.record.attempts import read_events_by_attempt
from hpckit.record.launches import Launch, load_run_settings, read_launch_history
from hpckit.values import replace
from hpckit.views.telemetry import read_nccl_transport, read_resource_usage_of_run


def diagnose_runs(
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
        index: build_run_findings(launch, history, view, accounts[index], usage=usages.get(index))
        for view in views
        if (index := view.record.index) in accounts
    }


def build_run_findings(
    launch: Launch, history: LaunchHistory, view: RunView, account: Goodput, *, usage: RunUsage | None = None
) -> RunFindings:
    """Return the findings on one run; `usage` is what it used, if that is already known."""
    index = view.record.index
    usage = read_resource_usage_of_run(launch, index) if usage is None else usage
    evidence = gather_run_evidence(launch, history, view, account, usage.nodes)
    shared = _find_shared_job(launch, history, index)
    settings = load_run_settings(launch, index)[0]
    asked = settings.resources
    energy = EnergySum()
    if not requests_part_of_gpu(asked):  # else its share is not known
        energy = sum_run_energy(usage.attempts, 1 if shared is None else 1 / shared.runs_per_gpu)
    steps = None if view.record.step is None else view.record.step + 1
    return RunFindings(
        verdicts=diagnose_run(evidence),
        stragglers=evidence.stragglers,
        telemetry=summarize_telemetry(evidence.gpus, evidence.ranks, energy, usage.seconds),
        energy=compute_energy_bill(
            energy,
            settings.cluster,
            lost=share_of_lost_time(account),
            steps=steps,
            step_samples=samples_per_step(evidence.ranks),
        ),
        gpus_asked=(requested_gpus_per_node(asked) or 0) * asked.nodes if view.record.attempt else 0,
        phases=average_timed_phases(evidence.ranks),
    )


def gather_run_evidence(
    launch: Launch, history: LaunchHistory, view: RunView, account: Goodput, usages: Sequence[NodeUsage] = ()
) -> RunEvidence:
    """Return all that is known about a run; `usages` are its nodes' telemetry."""
    index = view.record.index
    shared, asked = _find_shared_job(launch, history, index), None
    if launch.cluster.kind is not ClusterKind.local:  # this machine allocates nothing
        asked = history.find_job_of_run(index).resources if shared is None else shared.each
    completed = view.state is RunState.completed and not view.record.reason
    allocation = None if asked is None else build_run_allocation(asked, account, completed=completed)
    cores = None if allocation is None else allocation.cpus_per_node
    hosts = summarize_host_use(usages, cores=cores, shared=shared is not None)
    fast = any(host.infiniband_ports for host in hosts)  # else NCCL's log decides nothing
    settings = load_run_settings(launch, index)[0]
    ranks = list_step_reports_of_ranks(usages)
    return RunEvidence(
        ranks=ranks,
        gpus=() if requests_part_of_gpu(settings.resources) else summarize_gpu_use(usages),
        hosts=hosts,
        times=build_time_shares(account),
        allocation=allocation,
        stragglers=_collect_stragglers(launch, view.record),
        nccl=read_nccl_transport(launch, index) if fast else None,
        run=view.record.id,
        settings=settings,
        layout=None if view.record.layout is None else view.record.layout.layout,
        trained=bool(ranks) or _has_trained(view.record, settings),
    )


def _has_trained(record: RunRecord, settings: LaunchConfig) -> bool:
    """Whether a step was done; of a command that reports none, whether it was started at all."""
    if record.step is not None or record.metrics:
        return True
    return settings.entry_point is None and record.round is not None


def _collect_stragglers(launch: Launch, record: RunRecord) -> tuple[Straggler, ...]:
    """Return the stragglers of all attempts; the record has those of the latest."""
    if record.attempt < 2:  # noqa: PLR2004
        return record.stragglers
    known = replace(record, stragglers=())
    with suppress(FrozenFolderError):
        for _, told in read_events_by_attempt(launch.paths.run(record.index)):
            known = known.apply_events(event for event in told if isinstance(event, StragglerFound))
    return known.stragglers


def _find_shared_job(launch: Launch, history: LaunchHistory, index: int) -> SharedJobSpec | None:
    if launch.cluster.kind is ClusterKind.local:
        return None
    return history.find_job_of_run(index).shared_job
