"""Promises of record.find: what a person types names a launch or a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpckit.errors import NotFoundError
from hpckit.record.launches import Launch
from hpckit.record.lookup import find_launch_or_run, list_own_launches

Frozen = Callable[..., Launch]


def test_list_launches_has_the_newest_first(frozen: Frozen, outputs: Path) -> None:
    """Launches are listed by when they were made, whatever their names."""
    made = [frozen(1, seconds=seconds) for seconds in (50, 0, 100)]
    (outputs / "not-a-launch").mkdir()
    assert list_own_launches(outputs) == (made[2].folder, made[0].folder, made[1].folder)


def test_list_launches_of_a_missing_folder_is_empty(tmp_path: Path) -> None:
    """Where nothing was ever launched there is nothing to list, and no error."""
    assert list_own_launches(tmp_path / "nowhere") == ()


def test_list_launches_tells_those_of_one_second_apart(frozen: Frozen, outputs: Path) -> None:
    """Of two launches in the same second the later one is the newer."""
    first, second = frozen(1, mark="zz"), frozen(1, mark="aa")
    assert list_own_launches(outputs) == (second.folder, first.folder)


def test_find_without_a_reference_is_the_latest(frozen: Frozen, outputs: Path) -> None:
    """The default is the latest launch, as a whole."""
    frozen(1)
    latest = frozen(1, seconds=5)
    found = find_launch_or_run(None, outputs)
    assert (found.launch.id, found.index) == (latest.id, None)


def test_a_launch_in_the_foreground_is_meant_only_by_its_name(frozen: Frozen, outputs: Path) -> None:
    """A session with a debugger is not what status, cancel or resume mean without a name."""
    earlier, debugged = frozen(1), frozen(1, seconds=5)
    record = json.loads(debugged.paths.launch.read_text())
    for words, latest in (
        (["launch", "--foreground", "--", "x"], earlier),
        (["launch", "--", "x", "--foreground"], debugged),
    ):
        debugged.paths.launch.write_text(json.dumps({**record, "arguments": words}))
        assert find_launch_or_run(None, outputs).launch.id == latest.id
        assert find_launch_or_run(".0", outputs).launch.id == latest.id
        assert find_launch_or_run(debugged.id, outputs).launch.id == debugged.id
        assert find_launch_or_run("@-1", outputs).launch.id == debugged.id


def test_find_understands_ids_prefixes_and_runs(frozen: Frozen, outputs: Path) -> None:
    """An id, the unique beginning of one, and either with a run's index."""
    frozen(2, mark="aa")
    wanted = frozen(2, mark="ab", seconds=60)
    beginning = wanted.id[:-4]
    for reference, index in [
        (wanted.id, None),
        (beginning, None),
        (f"{wanted.id}.1", 1),
        (f"{beginning}.0", 0),
    ]:
        found = find_launch_or_run(reference, outputs)
        assert (found.launch.id, found.index) == (wanted.id, index)


def test_find_understands_names_and_places_from_the_latest(frozen: Frozen, outputs: Path) -> None:
    """A name means its latest launch, `@-2` the last but one, `.1` a run of the latest one."""
    first, latest = frozen(2), frozen(2, seconds=5)
    for reference, launch, index in [
        ("demo", latest, None),
        ("demo.1", latest, 1),
        (".1", latest, 1),
        ("@-1", latest, None),
        ("@-2", first, None),
        ("@-2.0", first, 0),
    ]:
        found = find_launch_or_run(reference, outputs)
        assert (found.launch.id, found.index) == (launch.id, index)
    for beyond in ("@-3", ".7"):
        with pytest.raises(NotFoundError):
            find_launch_or_run(beyond, outputs)


def test_find_understands_folders(frozen: Frozen, tmp_path: Path) -> None:
    """The folder of a launch, of a run, or inside one, absolute or relative."""
    launch = frozen(2)
    run = launch.paths.run(1)
    run.attempt(1).folder.mkdir(parents=True)
    for reference, index in [
        (str(launch.folder), None),
        (str(launch.paths.logs), None),
        (str(run.folder), 1),
        (str(run.attempt(1).folder), 1),
        (f"made/outputs/{launch.id}/", None),
        (f"{launch.folder}.1", 1),
        (f"{launch.folder}/.0", 0),
        (f"made/outputs/{launch.id}.1", 1),
    ]:
        found = find_launch_or_run(reference, tmp_path / "elsewhere", cwd=tmp_path)
        assert (found.launch.id, found.index) == (launch.id, index)


def test_find_nothing_names_what_is_near(frozen: Frozen, outputs: Path) -> None:
    """A mistyped id is answered with the nearest ones."""
    launch = frozen(1)
    with pytest.raises(NotFoundError) as caught:
        find_launch_or_run(launch.id.replace("demo", "dmeo"), outputs)
    assert launch.id in caught.value.hint


def test_find_takes_a_bare_number_for_a_forgotten_dot(frozen: Frozen, outputs: Path) -> None:
    """`3` is no launch; the run that may be meant is `.3`."""
    frozen()
    with pytest.raises(NotFoundError) as caught:
        find_launch_or_run("3", outputs, cwd=outputs)
    assert caught.value.hint == "run 3 of the latest launch is .3"


def test_find_says_that_an_override_is_none(frozen: Frozen, outputs: Path) -> None:
    """As in `rerun RUN lr=3`, which takes none."""
    frozen()
    with pytest.raises(NotFoundError, match="'lr=3' is an override, not a launch") as missing:
        find_launch_or_run("lr=3", outputs, cwd=outputs)
    assert "hpckit launch" in missing.value.hint


def test_find_an_ambiguous_beginning_names_the_candidates(frozen: Frozen, outputs: Path) -> None:
    """A beginning that several launches share is refused with their names."""
    first, second = frozen(1), frozen(1, seconds=5)
    with pytest.raises(NotFoundError) as caught:
        find_launch_or_run("dem", outputs)
    assert first.id in caught.value.message
    assert second.id in caught.value.message


def test_find_a_run_beyond_the_last_says_which_there_are(frozen: Frozen, outputs: Path) -> None:
    """An index out of range is refused with the range."""
    launch = frozen(2)
    with pytest.raises(NotFoundError, match="it has 0 to 1"):
        find_launch_or_run(f"{launch.id}.2", outputs)
    alone = frozen(1, seconds=5)
    with pytest.raises(NotFoundError, match="it has only run 0"):
        find_launch_or_run(f"{alone.id}.1", outputs)


def test_find_a_run_beyond_the_last_of_a_folder_says_which_there_are(frozen: Frozen, tmp_path: Path) -> None:
    """`FOLDER.INDEX` is checked as `ID.INDEX` is."""
    launch = frozen(2)
    with pytest.raises(NotFoundError, match="it has 0 to 1"):
        find_launch_or_run(f"{launch.folder}.2", tmp_path / "elsewhere")


def test_find_among_no_launches_says_how_to_make_one(tmp_path: Path) -> None:
    """With no launches at all, the hint says how to get one and where it looked."""
    with pytest.raises(NotFoundError) as caught:
        find_launch_or_run(None, tmp_path)
    assert str(tmp_path) in caught.value.message
    assert "hpckit launch" in caught.value.hint
