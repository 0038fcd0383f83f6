"""Promises of `rank_info`: each edge case is one met on a real Slurm 22.05."""

from __future__ import annotations

import pytest

from hpckit.errors import RankInfoError
from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.rank import TASK_VARIABLES, RankInfo, RankSource
from hpckit.runtime.environ import (
    find_job_and_restarts,
    rank_info,
    rank_variables,
    remove_agent_variables,
    remove_rank_variables,
    srun_rank_variables,
)

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "3,1(x2)",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "n2",
}


def test_rank_info_reads_uneven_task_counts() -> None:
    """`-N3 -n5` gives `3,1(x2)`: the local world size is that of the rank's own node."""
    info = rank_info(STEP)
    assert info == RankInfo(
        rank=3,
        world_size=5,
        local_rank=0,
        local_world_size=1,
        node_rank=1,
        num_nodes=3,
        source=RankSource.slurm_step,
        node="n2",
    )
    first_node = rank_info(STEP | {"SLURM_NODEID": "0", "SLURM_PROCID": "2", "SLURM_LOCALID": "2"})
    assert first_node.local_world_size == 3


def test_rank_info_ignores_the_job_inside_a_smaller_step() -> None:
    """`srun -N2 -r1` in a job of three nodes: only SLURM_STEP_* tells the truth."""
    environ = STEP | {
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NTASKS": "9",
        "SLURM_STEP_NODELIST": "n[2-3]",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "0",
        "SLURM_NODEID": "0",
    }
    info = rank_info(environ)
    assert (info.rank, info.world_size, info.num_nodes, info.node) == (0, 2, 2, "n2")


def test_rank_info_keeps_local_rank_under_gpus_per_task() -> None:
    """`--gpus-per-task` shows each task one GPU "0": the local rank is not derived from it."""
    environ = STEP | {"CUDA_VISIBLE_DEVICES": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "2"}
    assert rank_info(environ | {"SLURM_PROCID": "2"}).local_rank == 2


@pytest.mark.parametrize("special", ["4294967290", "4294967291", "4294967293"])
def test_rank_info_takes_no_special_step_for_a_rank(special: str) -> None:
    """The batch, interactive and extern steps have numbers too, but no ranks."""
    info = rank_info({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": special, "SLURM_NTASKS": "1"})
    assert info.source is RankSource.single
    assert info.world_size == 1


@pytest.mark.parametrize(
    "counts", [{"SLURM_NTASKS": "5"}, {"SLURM_TASKS_PER_NODE": "1(x2)"}], ids=["ntasks", "N2-without-n"]
)
def test_rank_info_refuses_a_batch_shell(counts: dict[str, str]) -> None:
    """A batch shell has SLURM_PROCID=0; with `-N2` alone not even SLURM_NTASKS tells of others."""
    environ = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"} | counts
    with pytest.raises(RankInfoError, match="batch script of job 7") as caught:
        rank_info(environ)
    assert "srun" in caught.value.hint


def test_rank_info_refuses_heterogeneous_jobs() -> None:
    """Components of a heterogeneous job count their ranks separately: nobody can tell."""
    with pytest.raises(RankInfoError, match="heterogeneous"):
        rank_info(STEP | {"SLURM_HET_SIZE": "2"})
    with pytest.raises(RankInfoError, match="heterogeneous"):
        rank_info(STEP | {"SLURM_JOB_ID_HET_GROUP_0": "7"})


@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NODEID"])
def test_rank_info_names_the_missing_variable(name: str) -> None:
    """A step whose variables are incomplete is an error that names the one that is missing."""
    environ = {key: value for key, value in STEP.items() if key != name}
    with pytest.raises(RankInfoError, match=f"{name} is not set"):
        rank_info(environ)


def test_rank_info_names_the_unreadable_variable() -> None:
    """A value that is no number is shown."""
    with pytest.raises(RankInfoError, match="SLURM_PROCID is 'two'"):
        rank_info(STEP | {"SLURM_PROCID": "two"})
    with pytest.raises(RankInfoError, match="3,x"):
        rank_info(STEP | {"SLURM_STEP_TASKS_PER_NODE": "3,x"})


def test_rank_info_refuses_contradictions() -> None:
    """A rank outside its world is an error, not a hang in the first collective."""
    with pytest.raises(RankInfoError, match="rank 5 must be below the world size 5"):
        rank_info(STEP | {"SLURM_PROCID": "5"})


def test_rank_info_reads_torchrun() -> None:
    """Variables of torchrun win over a Slurm step around it: its agent is the step's task."""
    environ = STEP | {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    info = rank_info(environ)
    assert info.source is RankSource.torchrun
    assert (info.rank, info.local_rank, info.node_rank, info.num_nodes) == (3, 1, 1, 2)
    assert (info.master_addr, info.master_port, info.restart_count) == ("n1", 29500, 2)


def test_rank_info_reads_what_the_agent_sets() -> None:
    """The variables an agent sets for a rank describe that very rank."""
    info = RankInfo(
        rank=3,
        world_size=4,
        local_rank=1,
        local_world_size=2,
        node_rank=1,
        num_nodes=2,
        source=RankSource.agent,
        node="n2",
        restart_count=1,
        master_addr="10.0.0.1",
        master_port=4000,
    )
    environ = remove_agent_variables(STEP | {"SLURM_NTASKS": "2"}) | rank_variables(info)
    assert rank_info(environ) == info
    assert not TASK_VARIABLES & environ.keys()


@pytest.mark.parametrize(("nodes", "each"), [("n[1-2]", 3), ("n4", 2), ("n7,n[1-2]", 1)])
def test_task_variables_describe_the_rank_as_a_step_of_srun(nodes: str, each: int) -> None:
    """Whoever reads them, hpckit too, finds the rank that torch's variables describe."""
    count = len(expand_hostlist(nodes))
    info = RankInfo(
        rank=count * each - 1,
        world_size=count * each,
        local_rank=each - 1,
        local_world_size=each,
        node_rank=count - 1,
        num_nodes=count,
        source=RankSource.slurm_step,
        node=expand_hostlist(nodes)[-1],
    )
    own = srun_rank_variables(info, nodes, 4)
    assert rank_info(own | {"SLURM_STEP_ID": "0", "SLURMD_NODENAME": info.node}) == info
    assert remove_rank_variables(own).keys() == {"SLURM_NNODES", "SLURM_CPUS_PER_TASK"}


def test_job_key_names_array_elements_as_users_do() -> None:
    """SLURM_JOB_ID of an element is another number than `123_4`, which users and scancel use."""
    assert find_job_and_restarts({"SLURM_JOB_ID": "9"}) == ("9", 0)
    element = {
        "SLURM_JOB_ID": "130",
        "SLURM_ARRAY_JOB_ID": "123",
        "SLURM_ARRAY_TASK_ID": "4",
        "SLURM_RESTART_COUNT": "2",
    }
    assert find_job_and_restarts(element) == ("123_4", 2)
    assert find_job_and_restarts({}) == (None, 0)
