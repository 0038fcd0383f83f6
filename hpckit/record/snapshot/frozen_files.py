"""Decides which paths of the project the nodes will have, and words why not; never calls git."""

from __future__ import annotations

import os
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath

from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.values import dataclass

OUTSIDE = "it leads out of the project, and a run starts in a folder of its own"
_KEEPERS = frozenset({".gitkeep", ".gitignore", ".keep", "README.md", "README", "README.txt"})
"""Files that only keep a folder in git while its other files are ignored."""

_ENTRIES_LOOKED_AT = 1000


@dataclass(frozen=True, kw_only=True)
class FrozenFiles:
    """The files of a project that are frozen; `output_dir` is the folder of launches."""

    snapshot: CodeSnapshot
    output_dir: Path

    def explain_path_missing_on_nodes(self, path: Path) -> str | None:
        """Return why the nodes will not have this path, None if they will.

        They have what is outside the project, in an installation, or in the frozen copy; without a
        copy, everything.
        """
        path, root = Path(os.path.normpath(path)), self.snapshot.root
        if self.snapshot.files is None or not path.is_relative_to(root):
            return None
        if "site-packages" in path.parts or self._contains_path(path.relative_to(root)):
            return None
        return self._explain_file_left_out(path)

    def explain_relative_path_missing(self, path: Path) -> str | None:
        """Return why a path relative to the run's folder will not be there, None if it will."""
        outside = not Path(os.path.normpath(path)).is_relative_to(self.snapshot.root)
        if self.snapshot.files is not None and outside:
            return OUTSIDE
        return self.explain_path_missing_on_nodes(path)

    def leads_out_of_project(self, name: str) -> bool:
        """Return whether a path leads out of the project, also if it comes back into it."""
        depth = len(Path(self.snapshot.working_dir).parts)
        for part in Path(name).parts if self.snapshot.files is not None else ():
            depth += -1 if part == ".." else 1
            if depth < 0:
                return True
        return False

    @cached_property
    def _frozen_paths(self) -> frozenset[str]:
        return frozenset(file.path for file in self.snapshot.files or ())

    @cached_property
    def _folders_with_content(self) -> frozenset[str]:
        """The folders that contain a file other than those in _KEEPERS."""
        found: set[str] = set()
        for file in self._frozen_paths:
            folder, _, name = file.rpartition("/")
            if name in _KEEPERS:
                continue
            while folder and folder not in found:
                found.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(found)

    def _contains_path(self, path: Path) -> bool:
        name = PurePosixPath(path)
        if str(name) in self._folders_with_content or str(name) == ".":
            return True
        # A link to a folder is frozen as a link: what is below it is at its target.
        if str(name) in self._frozen_paths or any(
            str(parent) in self._frozen_paths for parent in name.parents
        ):
            return True
        return self._has_only_placeholder_files(path)

    def _has_only_placeholder_files(self, path: Path) -> bool:
        folder = self.snapshot.root / path
        kept = [file for file in self._frozen_paths if file.startswith(f"{path.as_posix()}/")]
        if not kept or not folder.is_dir():
            return False
        with os.scandir(folder) as entries:
            return all(entry.name in _KEEPERS for entry in islice(entries, _ENTRIES_LOOKED_AT))

    def _explain_file_left_out(self, path: Path) -> str:
        name = path.relative_to(self.snapshot.root).as_posix()
        if any(f"{name}/".startswith(f"{left.rstrip('/')}/") for left in self.snapshot.left_out):
            return "it looks like a secret (code.secrets takes it)"
        if path.is_relative_to(self.output_dir):
            return "it is in the folder of launches"
        if path.is_dir() and not any(files for _, _, files in os.walk(path)):
            return "it contains no files"
        if self.snapshot.git is None:
            return "it is taken for a cache, an installation or an output"
        return "git ignores what is in it" if path.is_dir() else "git ignores it"
