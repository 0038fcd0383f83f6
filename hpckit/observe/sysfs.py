"""Small files of /proc and /sys, read below an injectable root. Absent or unreadable is None."""

from __future__ import annotations

from pathlib import Path


def read_small(path: Path) -> str | None:
    """Return the text of a file without its line end, or None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_count(path: Path) -> int | None:
    """Return the number in a file, or None if there is none."""
    text = read_small(path)
    try:
        return None if text is None else int(text.split()[0])
    except (ValueError, IndexError):
        return None


def read_fields(path: Path) -> dict[str, int]:
    """Return the lines `name number` of a file; none if it cannot be read."""
    found: dict[str, int] = {}
    for line in (read_small(path) or "").splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdigit():
            found[name] = int(number)
    return found


def folders(path: Path) -> list[Path]:
    """Return what is in a folder, by name; empty if it cannot be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def numa_node(device: Path) -> int | None:
    """Return the node of memory next to a device; the kernel's -1 is unknown."""
    node = read_count(device / "numa_node")
    return node if node is not None and node >= 0 else None
