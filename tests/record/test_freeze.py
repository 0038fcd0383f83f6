"""Promises of record.freeze: a whole launch folder, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import UsageError
from hpckit.model.plan import LaunchPlan
from hpckit.record.freeze import remove_launch_folder, write_frozen_launch
from hpckit.record.launches import Launch, load_run_settings
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.snapshot.git import GitState

Frozen = Callable[..., Launch]
Planned = Callable[..., LaunchPlan]


def read(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text())


def test_freeze_writes_every_documented_file(frozen: Frozen) -> None:
    """The folder holds what docs/reference/run-folder.md lists, and nothing else."""
    launch = frozen(2)
    found = {
        path.relative_to(launch.folder).as_posix() for path in launch.folder.rglob("*") if path.is_file()
    }
    assert found == {
        "launch.json",
        "signatures.txt",
        "environment.json",
        "code.json",
        "code.sha256",
        "code/sub/train.py",
        "job-0.sbatch",
        "configs/00000.jsonl",
    }
    assert (launch.folder / "logs").is_dir()


def test_freeze_keeps_everything_to_the_user_alone(frozen: Frozen) -> None:
    """Configurations may hold secrets: nobody else can read or enter anything."""
    launch = frozen(1)
    paths = [launch.folder, *launch.folder.rglob("*")]
    assert not [path for path in paths if path.stat().st_mode & 0o077 and path.is_file()]
    assert launch.folder.stat().st_mode & 0o777 == 0o700


def test_freeze_describes_runs_with_their_whole_configuration(frozen: Frozen, planned: Planned) -> None:
    """launch.json and the run's line of configs/ say what was planned, in plain JSON."""
    launch = frozen(2)
    plan = planned(2)
    assert read(launch.paths.launch)["runs"][1] == {
        "id": f"{plan.id}.1",
        "index": 1,
        "overrides": ["seed=1"],
        "signature": plan.runs[1].signature,
        "stage": None,
    }
    lines = launch.paths.configs_file_of_run(1).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [run.config for run in plan.runs]


def test_freeze_writes_few_files_for_many_runs(frozen: Frozen, planned: Planned) -> None:
    """A thousand runs are ten files, and each run finds its own line."""
    launch, plan = frozen(250), planned(250)
    assert len(list(launch.folder.rglob("*"))) < 20
    assert [load_run_settings(launch, run)[1] for run in (0, 99, 100, 249)] == [
        plan.runs[run].config for run in (0, 99, 100, 249)
    ]


def test_freeze_keeps_the_rendered_script_to_the_letter(frozen: Frozen) -> None:
    """The script is the text that was rendered."""
    launch = frozen(1)
    assert launch.paths.script(0).read_text() == f"#!/bin/bash\n# {launch.id}\n"


def test_freeze_copies_code_that_later_edits_do_not_reach(frozen: Frozen, project: Path) -> None:
    """Editing the project after the launch changes nothing in the frozen copy."""
    launch = frozen(1)
    (project / "sub" / "train.py").write_text("changed\n")
    assert (launch.folder / "code/sub/train.py").read_text() == "print()\n"


def test_freeze_writes_the_diff_of_a_dirty_checkout(planned: Planned, snapshot: CodeSnapshot) -> None:
    """What differs from the commit lies beside it, whatever bytes it holds."""
    plan = planned(1)
    state = GitState(commit="abc", branch=None, dirty=True, diff="-a\n+\udce4\n")
    write_frozen_launch(plan, scripts={}, snapshot=replace(snapshot, git=state), environment={})
    assert (Path(plan.folder) / "code.diff").read_bytes() == b"-a\n+\xe4\n"
    assert read(Path(plan.folder) / "code.json")["dirty"] is True


def test_freeze_without_a_snapshot_copies_nothing(planned: Planned, snapshot: CodeSnapshot) -> None:
    """With code.snapshot=false there is no code folder, and the record says so."""
    plan = planned(1)
    write_frozen_launch(plan, scripts={}, snapshot=replace(snapshot, files=None), environment={})
    assert not (Path(plan.folder) / "code").exists()
    assert read(Path(plan.folder) / "launch.json")["code"]["snapshot"] is False


class Failing(Mapping[int, str]):
    """Scripts of which the second cannot be had."""

    def __iter__(self) -> Any:
        """Yield two indices."""
        return iter((0, 1))

    def __len__(self) -> int:
        """Say two."""
        return 2

    def __getitem__(self, index: int) -> str:
        """Return the first, fail for the second."""
        if index == 1:
            raise RuntimeError("half way")
        return "text"


def test_freeze_leaves_nothing_behind_where_it_fails_half_way(
    planned: Planned, snapshot: CodeSnapshot, outputs: Path
) -> None:
    """A failure in the middle removes the folder, and the output folders it had made."""
    with pytest.raises(RuntimeError, match="half way"):
        write_frozen_launch(planned(1), scripts=Failing(), snapshot=snapshot, environment={})
    assert not outputs.parent.exists()


def test_freeze_keeps_other_launches_where_it_fails(
    frozen: Frozen, planned: Planned, snapshot: CodeSnapshot, outputs: Path
) -> None:
    """A failure removes only its own folder."""
    launch = frozen(1)
    with pytest.raises(RuntimeError, match="half way"):
        write_frozen_launch(planned(1, mark="bb"), scripts=Failing(), snapshot=snapshot, environment={})
    assert list(outputs.iterdir()) == [launch.folder]


def test_freeze_into_an_unwritable_place_is_a_usage_error(
    planned: Planned, snapshot: CodeSnapshot, tmp_path: Path
) -> None:
    """An output folder that cannot be made is named, with what to set instead."""
    (tmp_path / "made").write_text("a file stands where the folder should")
    with pytest.raises(UsageError) as caught:
        write_frozen_launch(planned(1), scripts={}, snapshot=snapshot, environment={})
    assert str(tmp_path / "made") in caught.value.message
    assert "output_dir" in caught.value.hint
    assert caught.value.exit_code == 2


def test_remove_takes_a_launch_away_whole(frozen: Frozen, outputs: Path) -> None:
    """Removing a launch leaves the others, and no hidden rest."""
    first, second = frozen(1), frozen(1, mark="bb")
    remove_launch_folder(first.folder)
    assert list(outputs.iterdir()) == [second.folder]
