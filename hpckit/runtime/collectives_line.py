"""The line on which an agent asks a rank for its collectives: the names both sides agree on.

It is a socket pair of its own. The rank answers in a thread, also while its main thread waits in a
collective; a rank whose interpreter stands still does not answer.
"""

from __future__ import annotations

VARIABLE = "HPCKIT_COLLECTIVES_FD"
"""Names the inherited file descriptor of the line."""

READY = b"ready\n"
"""What a rank sends when its thread listens; others are not asked."""

MOST_BYTES = 512 * 1024
"""Of one answer."""
