"""How many files this process may have open, including sockets.

Uses what the system allows, and provides a hint for when that is too little. Slurm passes on the
soft limit of the login shell, traditionally 1024 for programs that call select(2). A gloo rank has
a socket for each of its peers, a supervisor one for each node.
"""

from __future__ import annotations

import errno
import os
import resource

_MOST = 1 << 20
"""The kernel's own bound, unless an administrator has changed it (fs.nr_open)."""
_SAID = os.strerror(errno.EMFILE)


def raise_open_file_limit() -> int:
    """Raise the soft limit to the hard one; return it. Processes started from now on inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _bound_file_limit(hard)
    if _bound_file_limit(soft) < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(_bound_file_limit(soft), wanted)


def open_file_limit() -> int:
    """Return how many files this process may have open."""
    return _bound_file_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def add_open_files_hint(message: str) -> str:
    """Return a message; if it is about too many open files, add the limit and what to do."""
    if _SAID not in message:
        return message
    return (
        f"{message}; this process may have {open_file_limit()} files open: "
        "have the hard limit raised (`ulimit -Hn`; for jobs LimitNOFILE of slurmd), "
        "or use fewer ranks"
    )


def _bound_file_limit(limit: int) -> int:
    return _MOST if limit == resource.RLIM_INFINITY else min(limit, _MOST)
