"""The only reader of the process environment, and what it says about ranks.

Turns variables into a RankInfo in one pure function. It never guesses: if the environment does not
say which rank this is, the error names what is missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from hpckit.errors import RankInfoError, UsageError
from hpckit.model.cluster.nodes import parse_task_counts
from hpckit.model.rank import RANK_VARIABLES, TASK_VARIABLES, RankInfo, RankSource
from hpckit.model.settings import VARIABLE as NOTIFY

ON_SUPERVISOR_LOST = "HPCKIT_ON_SUPERVISOR_LOST"
"""For agents: the words to run when their supervisor is gone, as JSON."""

SATELLITE = "HPCKIT_SATELLITE"
"""The Slurm job of an agent that joined a run from another job than the run's own."""

TERMINAL = "HPCKIT_TERMINAL"
"""For agents: the terminal device for the one rank of a run in the foreground."""

FORK_SERVER = "HPCKIT_FORK_SERVER"
"""For supervisors and agents: the path of the socket of a fork server they may use."""

_HIGHEST_STEP = 0xFFFFFFF0
"""Slurm numbers its own steps (batch 4294967291, interactive 4294967290 …) from here upwards."""

STAGED_ENVIRONMENT = "HPCKIT_STAGED_ENVIRONMENT"
"""For agents: how the environment that they run in came to their node, as JSON."""

_OF_THE_AGENT = (
    TERMINAL,
    STAGED_ENVIRONMENT,
    FORK_SERVER,
    NOTIFY,
    *TASK_VARIABLES,
    "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_LIST",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_CPU_BIND_VERBOSE",
)
"""Variables that are true of a node's one agent, but not of its ranks.

A library that reads them would count nodes instead of ranks, so ranks do not inherit them. Nor do
they inherit the addresses of notices, which are secrets and not theirs.
"""


_IDENTITY = frozenset(
    {
        *RANK_VARIABLES,
        *TASK_VARIABLES,
        *("HPCKIT_LINK_FD", "HPCKIT_STEP_FD", "HPCKIT_LAUNCH_DIR", "HPCKIT_RUN_DIR", "HPCKIT_ATTEMPT_DIR"),
        *("HPCKIT_RUN_INDEX", "HPCKIT_ROUND", "HPCKIT_PROJECT"),
        SATELLITE,
    }
)
_IDENTITY_PREFIXES = (
    *("TORCHELASTIC_", "HPCKIT_RANK", "HPCKIT_WORLD_", "HPCKIT_LOCAL_", "HPCKIT_GROUP_"),
    "HPCKIT_STAGE",
)


def copy_environment() -> dict[str, str]:
    """Return a copy of the current environment."""
    return dict(os.environ)


def find_node_name() -> str:
    """Return this node's name as Slurm knows it, or the host's name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def replace_environment(variables: Mapping[str, str]) -> None:
    """Replace the environment of this process with these variables."""
    os.environ.clear()
    os.environ.update(variables)


def set_environment_variables(variables: Mapping[str, str]) -> None:
    """Set variables of this process, for libraries that read them."""
    os.environ.update(variables)


def rank_info(environ: Mapping[str, str]) -> RankInfo:
    """Return the rank that these variables describe.

    Sources in this order: hpckit's agent, torchrun, a Slurm step (`SLURM_STEP_*` only: the job's
    variables are wrong inside a step of fewer nodes, and are also present in a batch script, which
    is not a rank). Without any of them it is a world of one.

    Raises RankInfoError for incomplete or contradictory variables, for heterogeneous jobs, and for
    a batch script that requests several tasks but was not started through srun.
    """
    if "HPCKIT_RANK" in environ:
        return _rank_from_torchrun(environ, prefix="HPCKIT_", source=RankSource.agent)
    if "TORCHELASTIC_RUN_ID" in environ or {"RANK", "WORLD_SIZE"} <= environ.keys():
        return _rank_from_torchrun(environ, prefix="", source=RankSource.torchrun)
    if _is_slurm_step(environ):
        return _rank_from_slurm_step(environ)
    _refuse_batch_shell(environ)
    return RankInfo(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        num_nodes=1,
        source=RankSource.single,
        node=environ.get("SLURMD_NODENAME", ""),
    )


def _is_slurm_step(environ: Mapping[str, str]) -> bool:
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _HIGHEST_STEP


def _refuse_batch_shell(environ: Mapping[str, str]) -> None:
    """Refuse to act as rank 0 of many in a batch shell, and to wait for ranks that never start.

    A batch shell has SLURM_PROCID=0 and the job's task count. With `-N2` and no `-n`, SLURM_NTASKS
    is not set, although two tasks are meant (22.05).
    """
    if "SLURM_JOB_ID" not in environ:
        return
    tasks = environ.get("SLURM_NTASKS") or environ.get("SLURM_TASKS_PER_NODE", "1")
    if sum(parse_task_counts(tasks)) > 1:
        raise RankInfoError(
            f"this process runs in the batch script of job {environ['SLURM_JOB_ID']}, which has "
            f"{tasks} tasks, but it is not one of them: SLURM_STEP_ID is not set",
            hint="start it through srun (`srun python …`) or through `hpckit launch`",
        )


def _rank_from_torchrun(environ: Mapping[str, str], *, prefix: str, source: RankSource) -> RankInfo:
    world_size = _parse_whole_number(environ, f"{prefix}WORLD_SIZE", source)
    local_world_size = _parse_whole_number(environ, f"{prefix}LOCAL_WORLD_SIZE", source, default=1)
    port = environ.get("MASTER_PORT")
    info = RankInfo(
        rank=_parse_whole_number(environ, f"{prefix}RANK", source),
        world_size=world_size,
        local_rank=_parse_whole_number(environ, f"{prefix}LOCAL_RANK", source, default=0),
        local_world_size=local_world_size,
        node_rank=_parse_whole_number(environ, f"{prefix}GROUP_RANK", source, default=0),
        num_nodes=_parse_whole_number(
            environ,
            f"{prefix}GROUP_WORLD_SIZE",
            source,
            default=max(1, world_size // max(1, local_world_size)),
        ),
        source=source,
        node=environ.get("SLURMD_NODENAME", ""),
        restart_count=_parse_whole_number(environ, "TORCHELASTIC_RESTART_COUNT", source, default=0),
        master_addr=environ.get("MASTER_ADDR"),
        master_port=int(port) if port and port.isdecimal() else None,
    )
    return _check_rank_info(info)


def _rank_from_slurm_step(environ: Mapping[str, str]) -> RankInfo:
    _refuse_heterogeneous_job(environ)
    source = RankSource.slurm_step
    node_rank = _parse_whole_number(environ, "SLURM_NODEID", source)
    counts = _read_step_tasks_per_node(environ)
    if node_rank >= len(counts):
        raise RankInfoError(
            f"SLURM_NODEID={node_rank}, but SLURM_STEP_TASKS_PER_NODE="
            f"{environ['SLURM_STEP_TASKS_PER_NODE']} describes {len(counts)} nodes"
        )
    return _check_rank_info(
        RankInfo(
            rank=_parse_whole_number(environ, "SLURM_PROCID", source),
            world_size=_parse_whole_number(environ, "SLURM_STEP_NUM_TASKS", source),
            local_rank=_parse_whole_number(environ, "SLURM_LOCALID", source),
            local_world_size=counts[node_rank],
            node_rank=node_rank,
            num_nodes=_parse_whole_number(environ, "SLURM_STEP_NUM_NODES", source),
            source=source,
            node=environ.get("SLURMD_NODENAME", ""),
            restart_count=_parse_whole_number(environ, "SLURM_RESTART_COUNT", source, default=0),
        )
    )


def _refuse_heterogeneous_job(environ: Mapping[str, str]) -> None:
    if "SLURM_HET_SIZE" in environ or any("_HET_GROUP_" in name for name in environ):
        raise RankInfoError(
            f"job {environ.get('SLURM_JOB_ID', '?')} is a heterogeneous job: its components count "
            "their ranks separately, so ranks of the whole job cannot be determined",
            hint="ask for one component, or launch the parts as separate runs",
        )


def _read_step_tasks_per_node(environ: Mapping[str, str]) -> tuple[int, ...]:
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    try:
        return parse_task_counts(text)
    except ValueError as error:
        raise RankInfoError(
            f"SLURM_STEP_TASKS_PER_NODE={text!r} cannot be read: {error}",
            hint="start the process through srun, which sets it",
        ) from None


def _parse_whole_number(
    environ: Mapping[str, str], name: str, source: RankSource, *, default: int | None = None
) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise RankInfoError(
            f"{name} is {'not set' if text is None else repr(text)}, but the other variables say "
            f"that this process was started by {source.value}",
            hint=f"{name} must be a whole number; start the process through srun, torchrun or "
            "`hpckit launch`, which set it",
        )
    return int(text)


def _check_rank_info(info: RankInfo) -> RankInfo:
    pairs = (
        ("rank", info.rank, "world size", info.world_size),
        ("local rank", info.local_rank, "local world size", info.local_world_size),
        ("node rank", info.node_rank, "number of nodes", info.num_nodes),
    )
    for name, value, limit_name, limit in pairs:
        if not value < limit:
            raise RankInfoError(
                f"{name} {value} must be below the {limit_name} {limit} (according to {info.source.value})"
            )
    return info


def find_job_and_restarts(environ: Mapping[str, str]) -> tuple[str | None, int]:
    """Return the job as Slurm's users name it (`123` or `123_4`) and its restart count."""
    job = environ.get("SLURM_JOB_ID")
    array, index = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and index:
        job = f"{array}_{index}"
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    return job, int(restarts) if restarts.isdecimal() else 0


def rank_variables(info: RankInfo) -> dict[str, str]:
    """Return the variables that torchrun would set for this rank, and the agent's own."""
    identity = {
        "RANK": info.rank,
        "WORLD_SIZE": info.world_size,
        "LOCAL_RANK": info.local_rank,
        "LOCAL_WORLD_SIZE": info.local_world_size,
        "GROUP_RANK": info.node_rank,
        "GROUP_WORLD_SIZE": info.num_nodes,
    }
    variables = {name: str(value) for name, value in identity.items()}
    variables |= {f"HPCKIT_{name}": value for name, value in variables.items()}
    variables |= {
        "NODE_RANK": str(info.node_rank),
        "ROLE_RANK": str(info.rank),
        "ROLE_WORLD_SIZE": str(info.world_size),
        "TORCHELASTIC_RESTART_COUNT": str(info.restart_count),
    }
    if info.master_addr is not None and info.master_port is not None:
        variables |= {"MASTER_ADDR": info.master_addr, "MASTER_PORT": str(info.master_port)}
    return variables


def srun_rank_variables(info: RankInfo, nodes: str, cpus: int) -> dict[str, str]:
    """Return the variables that srun would set for this rank, in a step of the round's nodes.

    `nodes` are their names in the order of their ranks, as a hostlist; `cpus` those of one rank.
    """
    each, count = info.local_world_size, info.num_nodes
    first, size = info.rank - info.local_rank, str(info.world_size)
    per_node = f"{each}(x{count})" if count > 1 else str(each)
    return {
        "SLURM_PROCID": str(info.rank),
        "SLURM_LOCALID": str(info.local_rank),
        "SLURM_NODEID": str(info.node_rank),
        "SLURM_GTIDS": ",".join(map(str, range(first, first + each))),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), size),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), per_node),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), str(count)),
        "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_CPUS_PER_TASK": str(cpus),
    }


def remove_rank_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without anything that says which rank its process is.

    Otherwise, after a launch from inside a rank, or with RANK set in a shell that sbatch exports,
    every agent would believe it is that rank.
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in _IDENTITY and not name.startswith(_IDENTITY_PREFIXES)
    }


def remove_image_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an agent's environment without the rank that an image's hooks gave it.

    Those of enroot for PyTorch set RANK and WORLD_SIZE in each task.
    """
    return {name: value for name, value in environ.items() if name not in {"RANK", "WORLD_SIZE"}}


def remove_agent_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what is true of the agent only."""
    left_out = {*_OF_THE_AGENT, ON_SUPERVISOR_LOST, SATELLITE}
    return {name: value for name, value in environ.items() if name not in left_out}


_LOOK_S = 0.5


def await_staged_data(name: str, environ: Mapping[str, str]) -> Path:
    """Return where staged data is on this node, once it is there; raises UsageError."""
    path, folder = environ.get(f"HPCKIT_DATA_{name.upper()}"), environ.get("HPCKIT_DATA")
    if path is None or folder is None:
        names = [
            key.removeprefix("HPCKIT_DATA_").lower() for key in environ if key.startswith("HPCKIT_DATA_")
        ]
        raise UsageError(
            f"this run has no data of the name {name!r}",
            hint=f"it has {', '.join(sorted(names)) or 'none'}; see data.stage",
        )
    link, failed = Path(folder, name), Path(folder, f"{name}.failed")
    while not link.is_symlink():
        if failed.exists():
            raise UsageError(f"the data {name!r} did not come to this node: {failed.read_text()}")
        time.sleep(_LOOK_S)
    return Path(path)
