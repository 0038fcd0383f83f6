"""The text of Slurm's configuration files. Pure."""

from pathlib import Path

from hpckit.sandbox.settings import (
    ACCOUNT,
    CLUSTER,
    CONTROLLER,
    CONTROLLER_ADDRESS,
    CPUS_PER_NODE,
    GPUS_PER_NODE,
    LOG_DIR,
    MEMORY_MB_PER_NODE,
    MUNGE_SOCKET,
    PREEMPT_TYPES,
    RUN,
    Options,
)

_NODE = (
    "NodeName={name} NodeAddr={address} NodeHostname={name} CPUs={cpus} Sockets=2 "
    "CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN"
)


def slurm_conf(options: Options) -> str:
    """Return slurm.conf: the controller, the nodes and the partitions `batch` and `urgent`."""
    suspends, never = options.preempt_mode == "suspend", options.preempt_mode == "off"
    return _filled(
        "slurm.conf",
        cluster=CLUSTER,
        controller=CONTROLLER,
        controller_address=CONTROLLER_ADDRESS,
        munge_socket=MUNGE_SOCKET,
        cred_expire=options.cred_expire,
        state=options.release_state,
        run=RUN,
        logs=LOG_DIR,
        slurmd_timeout=options.slurmd_timeout,
        max_array_size=options.max_array_size,
        grace=options.grace,
        preempt_type="preempt/none" if never else PREEMPT_TYPES[options.preempt_by],
        mode=options.preempt_mode.upper(),
        # Slurm can only continue what it has suspended if it switches between jobs (GANG).
        cluster_mode="SUSPEND,GANG" if suspends else options.preempt_mode.upper(),
        sharing=" OverSubscribe=FORCE:1" if suspends else "",
        nodes="\n".join(_node_line(node.name, node.address) for node in options.all_nodes()),
    )


def _filled(name: str, **values: object) -> str:
    return Path(__file__).with_name(f"{name}.template").read_text().format(**values)


def _node_line(name: str, address: str) -> str:
    return _NODE.format(
        name=name,
        address=address,
        cpus=CPUS_PER_NODE,
        cores=CPUS_PER_NODE // 2,
        memory=MEMORY_MB_PER_NODE,
        gpus=GPUS_PER_NODE,
    )


def gres_conf() -> str:
    """Return gres.conf: other existing devices as GPUs give real GPU accounting and masks."""
    return f"Name=gpu File=/dev/fakegpu[0-{GPUS_PER_NODE - 1}]\n"


def cgroup_conf(options: Options) -> str:
    """Return cgroup.conf without cgroups; in 22.05 the only way is not to mount any."""
    if options.release == "22.05":
        return "CgroupAutomount=no\n"
    return "CgroupPlugin=disabled\n"


def slurmdbd_conf(options: Options) -> str:
    """Return slurmdbd.conf: one database per release, reached over the sandbox's own socket."""
    return _filled(
        "slurmdbd.conf",
        munge_socket=MUNGE_SOCKET,
        controller=CONTROLLER,
        database=options.database,
        logs=LOG_DIR,
        run=RUN,
    )


def accounting_commands(users: tuple[str, ...], options: Options) -> list[list[str]]:
    """Return the sacctmgr commands that register the cluster, the account, its QOS and users."""
    commands = [["add", "cluster", CLUSTER], ["add", "account", ACCOUNT, f"cluster={CLUSTER}"]]
    preempted = [f"preemptmode={options.preempt_mode}", f"gracetime={options.grace}"]
    if options.preempt_mode == "off":
        preempted = ["preemptmode=cluster"]
    commands += [
        ["add", "qos", "urgent", "preempt=normal", "priority=1000"],
        ["modify", "qos", "normal", "set", *preempted],
        ["modify", "account", ACCOUNT, "set", "qos=normal,urgent"],
    ]
    commands += [["add", "user", user, f"account={ACCOUNT}"] for user in users]
    return commands
