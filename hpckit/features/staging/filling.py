"""A partial copy that grows, with a journal of what is written, from which a later one goes on."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

from hpckit.features.staging.listing import Listing, Tree
from hpckit.features.staging.transfer import Shelf
from hpckit.values import dataclass, field


@dataclass(slots=True, kw_only=True)
class Filling:
    """A partial copy that grows block by block, with a line for each in its journal."""

    partial: Path
    journal: Path
    shelf: Shelf
    _lines: FileIO | None = field(default=None, init=False)

    @property
    def tree(self) -> Tree:
        """The files."""
        assert self.shelf.tree is not None, "begun"  # noqa: S101
        return self.shelf.tree

    def begin(self, listing: Listing, sums: list[str]) -> None:
        """Go on from these blocks."""
        tree = Tree(self.partial, listing)
        tree.make_frame()
        text = b"\n".join([listing.text, *(found.encode() for found in sums)]) + b"\n"
        part = self.journal.with_name(f"{self.journal.name}.part")
        part.write_bytes(text)
        part.rename(self.journal)
        self.end()
        self._lines = self.journal.open("ab", buffering=0)
        self.shelf.begin(tree, sums)

    def begin_unless_same(self, listing: Listing) -> None:
        """Go on with the blocks that are here, if they are of the same files; else begin anew."""
        tree = self.shelf.tree
        if self._lines is None or tree is None or tree.listing.text != listing.text:
            self.begin(listing, [])

    def write(self, block: int, data: bytes, found: str) -> None:
        """Write the next block."""
        self.tree.write_block(block, data)
        self.add(found)

    def add(self, found: str) -> None:
        """Note that the next block is written."""
        assert self._lines is not None, "begun"  # noqa: S101
        self._lines.write(f"{found}\n".encode())
        self.shelf.add(found)

    def end(self) -> None:
        """Close the journal."""
        if self._lines is not None:
            self._lines.close()
        self._lines = None
