"""What a cluster offers and allows one user, asked in few questions: each at most once.

Responsible for asking, and for going on where nobody answers; it must not decide what a limit
means for a job (planning). slurmctld is asked three things at most, the accounting database
three more, and that only where it matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hpckit.errors import SchedulerAbsentError, SchedulerError
from hpckit.model.limits import SubmitLimits
from hpckit.model.site import Account, Site, SiteSettings
from hpckit.planning import applies
from hpckit.planning.applies import Chosen
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.site import (
    ACCOUNT_FORMAT,
    QOS_FORMAT,
    SINFO_FORMAT,
    USER_FORMAT,
    read_accounts,
    read_node_groups,
    read_partitions,
    read_qos,
    read_site_settings,
    read_user,
)

CONFIG = ("scontrol", "show", "config")
PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
NODES = ("sinfo", "--all", "--exact", "--noheader", f"--format={SINFO_FORMAT}")
ACCOUNTS = ("sacctmgr", "-nP", "show", "associations", "users=", f"format={ACCOUNT_FORMAT}")
QOS = ("sacctmgr", "-nP", "show", "qos", f"format={QOS_FORMAT}")

_Found = TypeVar("_Found")


def user_command(user: str) -> tuple[str, ...]:
    """Return the question for a user's associations."""
    return ("sacctmgr", "-nP", "show", "user", user, "withassoc", f"format={USER_FORMAT}")


def submit_limits(
    commands: SlurmCommands,
    account: str | None,
    partition: str | None,
    qos: str | None,
    user: str,
) -> SubmitLimits:
    """Return how many jobs this user may hand in there; null where there is no limit, or no answer.

    `user` is the login name. Raises nothing: an unknown limit is met when sbatch refuses.
    """
    site = read_site(commands, user, nodes=False)
    return applies.submit_limits(site, Chosen(account=account, partition=partition, qos=qos))


def read_site(commands: SlurmCommands, user: str, *, nodes: bool = True) -> Site:
    """Return what can be learnt of the cluster for this user; `unknown` says what could not.

    `nodes`: whether to ask what the nodes have. Raises nothing of Slurm's.
    """
    asking = _Asking(commands=commands)
    settings = asking.ask(CONFIG, read_site_settings)
    partitions = asking.ask(PARTITIONS, read_partitions)
    groups = asking.ask(NODES, read_node_groups) if nodes else None
    if settings is None or not settings.accounting:
        return Site(
            settings=settings,
            partitions=partitions,
            nodes=groups,
            unknown=tuple(asking.unanswered),
        )
    found = asking.ask(user_command(user), lambda text: read_user(text, settings.cluster))
    default, associations = (None, None) if found is None else found
    return Site(
        settings=settings,
        partitions=partitions,
        nodes=groups,
        default_account=default,
        associations=associations,
        accounts=_accounts(asking, settings),
        qos=asking.ask(QOS, read_qos),
        unknown=tuple(asking.unanswered),
    )


def _accounts(asking: _Asking, settings: SiteSettings) -> dict[str, Account] | None:
    if not applies.limits_kept(Site(settings=settings)):
        return None
    return asking.ask(ACCOUNTS, lambda text: read_accounts(text, settings.cluster))


@dataclass(slots=True)
class _Asking:
    """Questions to Slurm, and those left without an answer.

    A controller or a database that did not answer once is not asked again: each would wait.
    """

    commands: SlurmCommands
    unanswered: list[str] = field(default_factory=list)
    away: set[bool] = field(default_factory=set)

    def ask(self, words: tuple[str, ...], read: Callable[[str], _Found]) -> _Found | None:
        """Return what was said, read; None without an answer."""
        database = words[0] == "sacctmgr"
        if database in self.away:
            return None
        try:
            return read(self.commands.run(*words))
        except SchedulerError as error:
            self.away.add(database)
            # Many sites install sacctmgr on few hosts, so that its absence is no news.
            if not (database and isinstance(error, SchedulerAbsentError)):
                self.unanswered.append(error.message)
            return None
