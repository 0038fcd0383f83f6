"""Imported by a rank's forkserver, the process that forks children on its behalf, as it starts.

It keeps that process alive through a notice from outside, and shields what it forks (see
hpckit.runtime.rank.child_signals). Importing it acts, so nothing else may import it.
Nobody signals this process to end it; it ends when the last of its clients does.
"""

from __future__ import annotations

import os
import signal

from hpckit.runtime.rank.child_signals import ignore, shield_this_child
from hpckit.runtime.signals import RANK_NOTICES

for _number in RANK_NOTICES:
    signal.signal(_number, ignore)
# At once: importing the main module, which a child does next, starts threads (OpenBLAS), and a mask
# reaches only those that are started under it.
os.register_at_fork(after_in_child=shield_this_child)
