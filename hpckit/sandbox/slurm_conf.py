"""The text of Slurm's configuration files. Pure."""

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

_SLURM_CONF = """\
# Written by `hpckit sandbox up`, each time.
ClusterName={cluster}
SlurmctldHost={controller}({controller_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge_socket},cred_expire={cred_expire}
StateSaveLocation={state}/slurmctld
SlurmdSpoolDir={state}/slurmd.%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.%n.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/slurmd.%n.log
MailProg=/bin/true

# Nodes claim more than this machine has, and no cgroup is touched.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
MpiDefault=none

# A dead node is noticed within seconds and comes back by itself. A ping of all nodes lasts as long
# as the wait for a dead one: a healthy node must not count as silent meanwhile.
SlurmdTimeout={slurmd_timeout}
MessageTimeout=5
KillWait=5
ReturnToService=2
MaxArraySize={max_array_size}
MaxJobCount=20000

SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
PreemptType={preempt_type}
PreemptMode={cluster_mode}
PriorityType=priority/multifactor

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={controller}
AccountingStoragePass={munge_socket}
AccountingStorageEnforce=associations,limits
AccountingStorageTRES=gres/gpu

GresTypes=gpu
{nodes}
PartitionName=DEFAULT Nodes=ALL State=UP DefaultTime=01:00:00 MaxTime=7-00:00:00{sharing}
PartitionName=batch Default=YES PriorityTier=1 PreemptMode={mode} GraceTime={grace}
PartitionName=urgent PriorityTier=10 PreemptMode=OFF
"""

_NODE = (
    "NodeName={name} NodeAddr={address} NodeHostname={name} CPUs={cpus} Sockets=2 "
    "CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN"
)

_SLURMDBD_CONF = """\
# Written by `hpckit sandbox up`, each time.
AuthType=auth/munge
AuthInfo=socket={munge_socket}
DbdHost={controller}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc={database}
LogFile={logs}/slurmdbd.log
PidFile={run}/slurmdbd.pid
"""


def slurm_conf(options: Options) -> str:
    """Return slurm.conf: the controller, the nodes and the partitions `batch` and `urgent`."""
    suspends, never = options.preempt_mode == "suspend", options.preempt_mode == "off"
    return _SLURM_CONF.format(
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
    return _SLURMDBD_CONF.format(
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
