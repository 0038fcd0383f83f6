"""Diagnoses of runs: gathers what is known about each, which planning.diagnosis judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpckit.model.diagnosis.verdict import Diagnosis
from hpckit.model.goodput import Goodput
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind
from hpckit.model.plan import ResourceSpec
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.planning.diagnosis.diagnose import diagnosis
from hpckit.planning.diagnosis.evidence import RunEvidence
from hpckit.planning.diagnosis.known import run_allocation, time_shares
from hpckit.record.launches import Launch, read_launch_history


def diagnoses(
    launch: Launch, views: Iterable[RunView], accounts: Mapping[int, Goodput]
) -> Mapping[int, Diagnosis]:
    """Return the diagnosis of each of these runs that has an account, by index."""
    history = read_launch_history(launch) if accounts else None
    return {
        view.record.index: diagnosis(
            run_evidence(launch, history, view, accounts[view.record.index])
        )
        for view in views
        if history is not None and view.record.index in accounts
    }


def run_evidence(
    launch: Launch, history: LaunchHistory, view: RunView, account: Goodput
) -> RunEvidence:
    """Return all that is known about a run. Telemetry (ranks, GPUs, nodes) is added here."""
    asked = _asked(launch, history, view.record.index)
    completed = view.state is RunState.completed and not view.record.reason
    return RunEvidence(
        times=time_shares(account),
        allocation=None if asked is None else run_allocation(asked, account, completed=completed),
    )


def _asked(launch: Launch, history: LaunchHistory, index: int) -> ResourceSpec | None:
    """Return what a run asked of Slurm; None on this machine, which allocates nothing."""
    if launch.cluster.kind is ClusterKind.local:
        return None
    job = history.job_of(index)
    return job.resources if job.shared_job is None else job.shared_job.each
