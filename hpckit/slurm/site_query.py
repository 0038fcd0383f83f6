"""What a cluster offers and allows one user, asked in few questions: each at most once.

Responsible for asking, and for going on where nobody answers; it must not decide what a limit
means for a job (planning). slurmctld is asked three things at most, the accounting database
three more, where there is one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from hpckit.errors import SchedulerAbsentError, SchedulerError
from hpckit.model.cluster.limits import SubmitLimits
from hpckit.model.cluster.site import Account, Association, NodeGroup, Qos, Site, SiteSettings
from hpckit.planning.checks import limits
from hpckit.planning.checks.limits import Chosen
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.site_parse import (
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

_DATABASE = "sacctmgr"
_AT_ONCE = 3

_Found = TypeVar("_Found")
_Answer = Callable[[], _Found | None]

Heard = MutableMapping[tuple[str, ...], str]
"""Questions and what was printed, for a verb that needs the answers twice."""

PATIENCE = timedelta(seconds=10)
"""How long a question about limits may hold up what goes on without an answer as well."""


def user_command(user: str) -> tuple[str, ...]:
    """Return the question for a user's associations."""
    return ("sacctmgr", "-nP", "show", "user", user, "withassoc", f"format={USER_FORMAT}")


def query_submit_limits(
    commands: SlurmCommands,
    account: str | None,
    partition: str | None,
    qos: str | None,
    user: str,
    heard: Heard | None = None,
) -> SubmitLimits:
    """Return how many jobs this user may hand in there; null where there is no limit, or no answer.

    `user` is the login name, `heard` as of `read_site`. Raises nothing: an unknown limit is
    met when sbatch refuses.
    """
    site = read_site(commands, user, nodes=False, heard=heard)
    return limits.submit_limits(site, Chosen.of(account, partition, qos))


def read_nodes(commands: SlurmCommands) -> tuple[NodeGroup, ...] | None:
    """Return what the nodes have and how they are; None where Slurm does not answer."""
    with _Asking.of(commands, None) as asking:
        return asking.ask(NODES, read_node_groups)()


def read_site(
    commands: SlurmCommands, user: str, *, nodes: bool = True, heard: Heard | None = None
) -> Site:
    """Return what can be learnt of the cluster for this user; `unknown` says what could not.

    `nodes`: whether to ask what the nodes have. What `heard` holds is not asked again, and what is
    answered is put into it. Raises nothing of Slurm's.
    """
    with _Asking.of(commands, heard) as asking:
        settings = asking.ask(CONFIG, read_site_settings)
        partitions = asking.ask(PARTITIONS, read_partitions)
        groups = asking.ask(NODES, read_node_groups) if nodes else _nothing
        known = settings()
        associations, accounts, qos = _accounting(asking, known, user)
        default, mine = associations() or (None, None)
        return Site(
            settings=known,
            partitions=partitions(),
            nodes=groups(),
            default_account=default,
            associations=mine,
            accounts=accounts(),
            qos=qos(),
            unknown=asking.unknown(),
        )


def _nothing() -> None:
    """Answer a question that nobody asked."""


_Associations = tuple[str | None, tuple[Association, ...]]


def _accounting(
    asking: _Asking, known: SiteSettings | None, user: str
) -> tuple[_Answer[_Associations], _Answer[dict[str, Account]], _Answer[dict[str, Qos]]]:
    """Ask the accounting, where there is one; accounts only where their limits are enforced."""
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
    """Questions to Slurm side by side, so that they wait together, and what stayed unanswered."""

    commands: SlurmCommands
    threads: ThreadPoolExecutor
    heard: Heard
    unanswered: dict[str, str] = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def of(cls, commands: SlurmCommands, heard: Heard | None) -> Iterator[_Asking]:
        """Yield one that asks for as long as the block lasts."""
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="slurm") as threads:
            yield cls(commands=commands, threads=threads, heard={} if heard is None else heard)

    def ask(self, words: tuple[str, ...], read: Callable[[str], _Found]) -> _Answer[_Found]:
        """Ask, and return what gives the answer, read; None where there was none."""
        said = None if words in self.heard else self.threads.submit(self.commands.run, *words)

        def _answer() -> _Found | None:
            try:
                if said is not None:
                    self.heard[words] = said.result()
                return read(self.heard[words])
            except SchedulerAbsentError as error:
                # Many sites install sacctmgr on few hosts, so that its absence is no news.
                if words[0] != _DATABASE:
                    self.unanswered.setdefault(words[0], error.message)
            except SchedulerError as error:
                self.unanswered.setdefault(words[0], error.message)
            return None

        return _answer

    def unknown(self) -> tuple[str, ...]:
        """Return why questions stayed unanswered: once for slurmctld, once for the database."""
        said = self.unanswered.items()
        controller = [message for program, message in said if program != _DATABASE]
        database = [message for program, message in said if program == _DATABASE]
        return (*controller[:1], *database)
