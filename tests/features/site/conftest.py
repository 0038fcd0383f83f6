"""Hands the tests of `init` clusters that answer what was recorded, or what was written by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_world import Said, verb_said

WRITTEN = Path(__file__).parent / "written"
DATA = Path(__file__).parents[2] / "data"
RELEASES = sorted(path.parent.name for path in DATA.glob("*/kinds.txt"))

ANSWERS = """#!/bin/sh
echo "$(basename "$0") $*" >> {folder}/asked
case "$(basename "$0") $*" in
  "scontrol "*config) cat {data}/config.txt ;;
  "scontrol "*partition) cat {data}/partitions.txt ;;
  "sinfo "*--Node*) cat {data}/nodes.txt ;;
  "sinfo "*) cat {data}/kinds.txt ;;
  "sacctmgr "*" user "*) cat {data}/user.txt ;;
  "sacctmgr "*Preempt*) cat {data}/preemption.txt ;;
  "sacctmgr "*" qos "*) cat {data}/qos.txt ;;
  *) exit 1 ;;
esac
"""
TAKES_ALL = '#!/bin/sh\necho "sbatch $*" >> {folder}/asked\n'


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of programs that print files, and a project of a user beside it."""

    folder: Path

    @property
    def bin_dir(self) -> Path:
        """Where its programs are."""
        return self.folder / "bin"

    @property
    def project(self) -> Path:
        """Where the user works."""
        return self.folder / "project"

    @property
    def asked(self) -> list[str]:
        """Each call of one of its programs, with its words."""
        return (self.folder / "asked").read_text().splitlines()

    def program(self, name: str, text: str) -> None:
        """Make one of its programs say other things."""
        path = self.bin_dir / name
        path.write_text(text.replace("{folder}", str(self.folder)))
        path.chmod(0o755)

    def init(self, *words: str) -> Said:
        """Run `hpckit init` there."""
        return self.hpckit("init", *words)

    def hpckit(self, *words: str) -> Said:
        """Run a verb there."""
        environ = {**os.environ, "PATH": f"{self.bin_dir}:/usr/bin:/bin"}
        return verb_said(*words, folder=self.project, environ=environ)

    def file(self, name: str) -> Path:
        """Return the file of that name."""
        return self.project / "conf" / "cluster" / f"{name}.yaml"

    def keys(self, name: str) -> dict[str, Any]:
        """Return what the file says, as YAML."""
        held: dict[str, Any] = yaml.safe_load(self.file(name).read_text())
        return held


@pytest.fixture
def cluster_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Cluster]:
    """Return a function that makes a cluster which answers what a folder holds; its user is no root."""
    monkeypatch.setattr("hpckit.features.site.facts.list_user_groups", lambda _: frozenset({"users"}))

    def _cluster_of(data: Path) -> Cluster:
        made = Cluster(tmp_path)
        made.bin_dir.mkdir()
        made.project.mkdir()
        for name in ("scontrol", "sinfo", "sacctmgr"):
            made.program(name, ANSWERS.replace("{data}", str(data)))
        made.program("sbatch", TAKES_ALL)
        return made

    return _cluster_of
