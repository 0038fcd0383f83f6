"""Queries what a cluster offers and allows one user: few queries, each at most once.

If a query gets no answer, the rest continues. There are at most three queries to slurmctld, and
three to the accounting database, if there is one; four if QOS preempt jobs. planning judges what a
limit means for a job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

from hpckit.errors import SchedulerAbsentError, SchedulerError
from hpckit.model.cluster.preemption import BY_QOS
from hpckit.model.cluster.site import (
    Account,
    Association,
    NodeGroup,
    Qos,
    Site,
    SiteSettings,
    SubmitLimits,
)
from hpckit.planning.checks import limits
from hpckit.planning.checks.limits import Chosen
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.site_parse import (
    ACCOUNT_FORMAT,
    QOS_FORMAT,
    QOS_PREEMPTION,
    SINFO_FORMAT,
    USER_FORMAT,
    read_accounts,
    read_node_groups,
    read_partitions,
    read_qos,
    read_qos_preemption,
    read_site_settings,
    read_user,
)
from hpckit.values import dataclass, field

CONFIG = ("scontrol", "show", "config")
PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
NODES = ("sinfo", "--all", "--exact", "--noheader", f"--format={SINFO_FORMAT}")
ACCOUNTS = ("sacctmgr", "-nP", "show", "associations", "users=", f"format={ACCOUNT_FORMAT}")
QOS = ("sacctmgr", "-nP", "show", "qos", f"format={QOS_FORMAT}")

_DATABASE = "sacctmgr"
_AT_ONCE = 3

_Found = TypeVar("_Found")
_Answer = Callable[[], _Found | None]

Heard = MutableMapping[tuple[str, ...], str]
"""Queries and their output, for a verb that needs the answers twice."""

PATIENCE = timedelta(seconds=10)
"""How long a query about limits may delay work that can continue without an answer."""


def user_command(user: str) -> tuple[str, ...]:
    """Return the query for a user's associations."""
    return ("sacctmgr", "-nP", "show", "user", user, "withassoc", f"format={USER_FORMAT}")


def query_submit_limits(
    commands: SlurmCommands,
    account: str | None,
    partition: str | None,
    qos: str | None,
    user: str,
    heard: Heard | None = None,
) -> SubmitLimits:
    """Return how many jobs this user may submit there; None if there is no limit or no answer.

    `user` is the login name, `heard` as in `read_site`. Raises no scheduler errors: an unknown
    limit shows when sbatch refuses.
    """
    site = read_site(commands, user, nodes=False, heard=heard)
    return limits.submit_limits(site, Chosen.of(account, partition, qos))


def read_nodes(commands: SlurmCommands) -> tuple[NodeGroup, ...] | None:
    """Return the resources and states of the nodes; None if Slurm does not answer."""
    with _Asking.of(commands, None) as asking:
        return asking.ask(NODES, read_node_groups)()


def read_site(
    commands: SlurmCommands, user: str, *, nodes: bool = True, heard: Heard | None = None
) -> Site:
    """Return what is known about the cluster for this user; `unknown` lists why parts are missing.

    `nodes` is whether to query the nodes' resources. Queries in `heard` are not repeated, and new
    answers are added to it. Raises no scheduler errors.
    """
    with _Asking.of(commands, heard) as asking:
        settings = asking.ask(CONFIG, read_site_settings)
        partitions = asking.ask(PARTITIONS, read_partitions)
        groups = asking.ask(NODES, read_node_groups) if nodes else _nothing
        known = settings()
        associations, accounts, qos = _accounting(asking, known, user)
        by_qos = known is not None and known.preempt_type == BY_QOS
        preemption = asking.ask(QOS_PREEMPTION, read_qos_preemption) if by_qos else _nothing
        default, mine = associations() or (None, None)
        return Site(
            settings=known,
            partitions=partitions(),
            nodes=groups(),
            default_account=default,
            associations=mine,
            accounts=accounts(),
            qos=qos(),
            qos_preemption=preemption(),
            unknown=asking.unknown(),
        )


def _nothing() -> None:
    """Answer a query that was not made."""


_Associations = tuple[str | None, tuple[Association, ...]]


def _accounting(
    asking: _Asking, known: SiteSettings | None, user: str
) -> tuple[_Answer[_Associations], _Answer[dict[str, Account]], _Answer[dict[str, Qos]]]:
    """Query the accounting, if there is one; accounts only if their limits are enforced."""
    if known is None or not known.accounting:
        return _nothing, _nothing, _nothing
    cluster = known.cluster
    mine = asking.ask(user_command(user), lambda text: read_user(text, cluster))
    accounts: _Answer[dict[str, Account]] = _nothing
    if limits.limits_kept(Site(settings=known)):
        accounts = asking.ask(ACCOUNTS, lambda text: read_accounts(text, cluster))
    return mine, accounts, asking.ask(QOS, read_qos)


@dataclass(slots=True, kw_only=True)
class _Asking:
    """Parallel queries to Slurm, and those that got no answer."""

    commands: SlurmCommands
    threads: ThreadPoolExecutor
    heard: Heard
    unanswered: dict[str, str] = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def of(cls, commands: SlurmCommands, heard: Heard | None) -> Iterator[_Asking]:
        """Yield an instance whose queries run until the block ends."""
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="slurm") as threads:
            yield cls(commands=commands, threads=threads, heard={} if heard is None else heard)

    def ask(self, words: tuple[str, ...], read: Callable[[str], _Found]) -> _Answer[_Found]:
        """Start a query, and return a function for its parsed answer, None if there was none."""
        said = None if words in self.heard else self.threads.submit(self.commands.run, *words)

        def _answer() -> _Found | None:
            try:
                if said is not None:
                    self.heard[words] = said.result()
                return read(self.heard[words])
            except SchedulerAbsentError as error:
                # Many sites install sacctmgr only on a few hosts, so its absence is not reported.
                if words[0] != _DATABASE:
                    self.unanswered.setdefault(words[0], error.message)
            except SchedulerError as error:
                self.unanswered.setdefault(words[0], error.message)
            return None

        return _answer

    def unknown(self) -> tuple[str, ...]:
        """Return why queries got no answer: once for slurmctld, once for the database."""
        said = self.unanswered.items()
        controller = [message for program, message in said if program != _DATABASE]
        database = [message for program, message in said if program == _DATABASE]
        return (*controller[:1], *database)
