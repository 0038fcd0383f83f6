"""Prepares a rank's forkserver, the process that forks children for it, on import.

Keeps that process alive when a notice comes from outside, and shields its forks (see
hpckit.runtime.rank.child_signals). Importing it has side effects, so nothing else may import it. No
process ends it by a signal; it ends when its last client does.
"""

from __future__ import annotations

import os
import signal

from hpckit.runtime.rank.child_signals import ignore_signal, shield_this_child_from_signals
from hpckit.runtime.signals import RANK_NOTICES

for _number in RANK_NOTICES:
    signal.signal(_number, ignore_signal)
# At once: a child next imports the main module, which starts threads (OpenBLAS), and a mask reaches
# only threads that are started under it.
os.register_at_fork(after_in_child=shield_this_child_from_signals)
