"""Whether an option of sbatch can be the one by which a site takes the power of a GPU. Pure."""

from __future__ import annotations

import re

from hpckit.errors import ConfigError

_LONG_OPTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OF_SLURM = frozenset(
    (
        *("account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir"),
        *("cluster-constraint", "clusters", "comment", "constraint", "container"),
        *("contiguous", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu"),
        *("cpus-per-task", "deadline", "delay-boot", "dependency", "distribution"),
        *("error", "exclude", "exclusive", "export", "export-file", "extra"),
        *("extra-node-info", "get-user-env", "gid", "gpu-bind", "gpu-freq", "gpus"),
        *("gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags"),
        *("hint", "hold", "ignore-pbs", "input", "job-name", "kill-on-invalid-dep"),
        *("licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind"),
        *("mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice", "no-kill"),
        *("no-requeue", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core"),
        *("ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "open-mode"),
        *("output", "overcommit", "oversubscribe", "parsable", "partition", "prefer"),
        *("priority", "profile", "propagate", "qos", "quiet", "reboot", "requeue"),
        *("reservation", "segment", "signal", "sockets-per-node", "spread-job"),
        *("stepmgr", "switches", "test-only", "thread-spec", "threads-per-core", "time"),
        *("time-min", "tmp", "tres-bind", "tres-per-task", "uid", "use-min-nodes"),
        *("verbose", "wait", "wait-all-nodes", "wckey", "wrap"),
    )
)
"""Long options of sbatch (its manual, 25.05), of which none takes the power of a GPU."""


def check_power_option(option: str | None) -> None:
    """Refuse what is no name of a long option of sbatch, or the name of one of Slurm's own.

    Raises ConfigError.
    """
    if option is None:
        return
    if not _LONG_OPTION.fullmatch(option):
        raise ConfigError(
            f"cluster.power_cap_option={option!r} is no name of an option of sbatch",
            hint="write it without --, for example cluster.power_cap_option=gpu-power",
        )
    if option in _OF_SLURM:
        raise ConfigError(
            f"cluster.power_cap_option={option}: --{option} is Slurm's own, and takes no watts",
            hint="name the option that your site's plugin adds, as `sbatch --help` lists it",
        )
