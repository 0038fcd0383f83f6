"""Queries what a cluster offers and allows one user: few queries, each at most once.

If a query gets no answer, the rest continues. There are at most three queries to slurmctld, and three to the
accounting database, if there is one; four if QOS preempt jobs. planning judges what a limit means for a job.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from concurrent.futures import Future
from datetime import timedelta
from threading import Thread
from typing import TypeVar

from hpckit.errors import SchedulerAbsentError, SchedulerError
from hpckit.model.cluster.preemption import BY_QOS
from hpckit.model.cluster.site import Account, Association, NodeGroup, Qos, Site, SiteSettings, SubmitLimits
from hpckit.planning.checks import limits
from hpckit.planning.checks.limits import Chosen
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.site_parse import (
    ACCOUNT_FORMAT,
    QOS_FORMAT,
    QOS_PREEMPTION,
    SINFO_FORMAT,
    USER_FORMAT,
    parse_accounts,
    parse_node_groups,
    parse_partitions,
    parse_qos,
    parse_qos_preemption,
    parse_site_settings,
    parse_user_associations,
)
from hpckit.values import dataclass, field

CONFIG = ("scontrol", "show", "config")
PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
NODES = ("sinfo", "--all", "--exact", "--noheader", f"--format={SINFO_FORMAT}")
ACCOUNTS = ("sacctmgr", "-nP", "show", "associations", "users=", f"format={ACCOUNT_FORMAT}")
QOS = ("sacctmgr", "-nP", "show", "qos", f"format={QOS_FORMAT}")

_DATABASE = "sacctmgr"

_Found = TypeVar("_Found")
_Answer = Callable[[], _Found | None]

Heard = MutableMapping[tuple[str, ...], Callable[[], str]]
"""Queries and what waits for their output, for a verb that needs answers twice, or begins early."""

PATIENCE = timedelta(seconds=10)
"""How long a query about limits may delay work that can continue without an answer."""


def build_user_associations_query(user: str) -> tuple[str, ...]:
    """Return the query for a user's associations."""
    return ("sacctmgr", "-nP", "show", "user", user, "withassoc", f"format={USER_FORMAT}")


def ask_submit_limits(
    commands: SlurmCommands,
    account: str | None,
    partition: str | None,
    qos: str | None,
    user: str,
    heard: Heard | None = None,
) -> SubmitLimits:
    """Return how many jobs this user may submit there; None if there is no limit or no answer.

    `user` is the login name, `heard` as in `ask_cluster_facts_for_user`. Raises no scheduler errors: an
    unknown limit shows when sbatch refuses.
    """
    site = ask_cluster_facts_for_user(commands, user, nodes=False, heard=heard)
    return limits.find_submit_limits(site, Chosen.lower_case_account_and_qos(account, partition, qos))


def ask_node_groups(commands: SlurmCommands) -> tuple[NodeGroup, ...] | None:
    """Return the resources and states of the nodes; None if Slurm does not answer."""
    return _Asking(commands=commands).start_parsed_query(NODES, parse_node_groups)()


def start_site_queries(commands: SlurmCommands, heard: Heard) -> None:
    """Begin the queries that every `ask_cluster_facts_for_user` with `heard` needs."""
    asking = _Asking(commands=commands, heard=heard)
    asking.start_query(CONFIG)
    asking.start_query(PARTITIONS)


def ask_cluster_facts_for_user(
    commands: SlurmCommands,
    user: str,
    *,
    nodes: bool = True,
    accounts: bool = True,
    heard: Heard | None = None,
) -> Site:
    """Return what is known about the cluster for this user; `unknown` lists why parts are missing.

    `nodes` is whether to query the nodes' resources, `accounts` the limits of accounts. Queries in
    `heard` are not repeated, and new answers are added to it. Raises no scheduler errors.
    """
    asking = _Asking(commands=commands, heard={} if heard is None else heard)
    settings = asking.start_parsed_query(CONFIG, parse_site_settings)
    partitions = asking.start_parsed_query(PARTITIONS, parse_partitions)
    groups = asking.start_parsed_query(NODES, parse_node_groups) if nodes else _answer_nothing
    known = settings()
    associations, limited, qos = _start_accounting_queries(asking, known, user, accounts=accounts)
    by_qos = known is not None and known.preempt_type == BY_QOS
    preemption = (
        asking.start_parsed_query(QOS_PREEMPTION, parse_qos_preemption) if by_qos else _answer_nothing
    )
    default, mine = associations() or (None, None)
    return Site(
        settings=known,
        partitions=partitions(),
        nodes=groups(),
        default_account=default,
        associations=mine,
        accounts=limited(),
        qos=qos(),
        qos_preemption=preemption(),
        unknown=asking.explain_missing_answers(),
    )


def _answer_nothing() -> None:
    """Answer a query that was not made."""


_Associations = tuple[str | None, tuple[Association, ...]]


def _start_accounting_queries(
    asking: _Asking, known: SiteSettings | None, user: str, *, accounts: bool
) -> tuple[_Answer[_Associations], _Answer[dict[str, Account]], _Answer[dict[str, Qos]]]:
    """Query the accounting, if there is one; accounts only if their limits are enforced."""
    if known is None or not known.accounting:
        return _answer_nothing, _answer_nothing, _answer_nothing
    cluster = known.cluster
    mine = asking.start_parsed_query(
        build_user_associations_query(user), lambda text: parse_user_associations(text, cluster)
    )
    limited: _Answer[dict[str, Account]] = _answer_nothing
    if accounts and limits.are_limits_enforced(Site(settings=known)):
        limited = asking.start_parsed_query(ACCOUNTS, lambda text: parse_accounts(text, cluster))
    return mine, limited, asking.start_parsed_query(QOS, parse_qos)


@dataclass(slots=True, kw_only=True)
class _Asking:
    """Parallel queries to Slurm, and those that got no answer."""

    commands: SlurmCommands
    heard: Heard = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)

    def start_query(self, words: tuple[str, ...]) -> None:
        """Start a query, unless it was started; the process does not wait for it at its end."""
        if words not in self.heard:
            said: Future[str] = Future()
            Thread(target=self._run_query, args=(words, said), daemon=True, name="slurm").start()
            self.heard[words] = said.result

    def _run_query(self, words: tuple[str, ...], said: Future[str]) -> None:
        try:
            said.set_result(self.commands.run(*words))
        except BaseException as error:  # noqa: BLE001
            said.set_exception(error)

    def start_parsed_query(self, words: tuple[str, ...], read: Callable[[str], _Found]) -> _Answer[_Found]:
        """Start a query, and return a function for its parsed answer, None if there was none."""
        self.start_query(words)
        said = self.heard[words]

        def _answer() -> _Found | None:
            try:
                return read(said())
            except SchedulerAbsentError as error:
                # Many sites install sacctmgr only on a few hosts, so its absence is not reported.
                if words[0] != _DATABASE:
                    self.unanswered.setdefault(words[0], error.message)
            except SchedulerError as error:
                self.unanswered.setdefault(words[0], error.message)
            self.heard.pop(words, None)  # a later query may get one
            return None

        return _answer

    def explain_missing_answers(self) -> tuple[str, ...]:
        """Return why queries got no answer: once for slurmctld, once for the database."""
        said = self.unanswered.items()
        controller = [message for program, message in said if program != _DATABASE]
        database = [message for program, message in said if program == _DATABASE]
        return (*controller[:1], *database)
