"""Imported by a rank's forkserver, the process that forks children on its behalf, as it starts.

Responsible for keeping that process alive through a notice from outside, and for shielding what it
forks (hpckit.runtime.children). It must not be imported by anybody else: importing it acts.
Nobody signals this process to end it; it ends when the last of its clients does.
"""

from __future__ import annotations

import os
import signal

from hpckit.runtime.children import NOTICES, ignore, shield_this_child

for _number in NOTICES:
    signal.signal(_number, ignore)
# At once: importing the main module, which a child does next, starts threads (OpenBLAS), and a mask
# reaches only those that are started under it.
os.register_at_fork(after_in_child=shield_this_child)
