"""Promises of `hpckit ls`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpckit.errors import UsageError
from hpckit.model import events
from hpckit.model.launch import ClusterKind
from hpckit.record.launches import load_launch


def test_ls_lists_launches_newest_first(desk: Any, writer: Any) -> None:
    """Each line has the id, the moment and the runs by state; where they lie is said once."""
    old = desk.freeze("old", sweep=[("a=1",), ("a=2",)])
    new = desk.freeze("new", minute=5)
    writer(launch=old).start()
    writer(launch=old).complete()
    document = json.loads(desk.say("ls", "--json").out)
    assert document == {
        "launches": [
            {
                "launch": new.id,
                "name": "new",
                "dir": str(new.folder),
                "created_at": "2026-01-01T00:05:00.000+00:00",
                "states": {"pending": 1},
                "foreign": None,
            },
            {
                "launch": old.id,
                "name": "old",
                "dir": str(old.folder),
                "created_at": "2026-01-01T00:00:00.000+00:00",
                "states": {"pending": 1, "completed": 1},
                "foreign": None,
            },
        ]
    }
    lines = desk.say("ls").out.splitlines()
    assert [line.split()[0] for line in lines] == ["launch", new.id, old.id]
    assert "1 pending, 1 completed" in lines[2]


def test_ls_shows_as_many_as_asked_for(desk: Any) -> None:
    """-n N stops after N and says how many there are besides; 0 means all."""
    for minute in range(3):
        desk.freeze(f"run{minute}", minute=minute)
    said = desk.say("ls", "-n", "2")
    assert len(said.out.splitlines()) == 3
    assert "1 older not shown" in said.err
    assert len(desk.say("ls", "-n", "0").out.splitlines()) == 4
    with pytest.raises(UsageError, match="-n is -1"):
        desk.say("ls", "-n", "-1")


def test_ls_of_an_empty_folder_says_so(desk: Any) -> None:
    """No launches is no error; JSON has an empty list."""
    said = desk.say("ls")
    assert (said.code, said.out) == (0, "")
    assert "there are no launches" in said.err
    assert json.loads(desk.say("ls", "--json").out) == {"launches": []}


def test_ls_passes_over_what_cannot_be_read(desk: Any) -> None:
    """A damaged launch is noted on standard error; the others are listed."""
    good, bad = desk.freeze("good"), desk.freeze("bad", minute=1)
    bad.paths.launch.write_text("{")
    said = desk.say("ls", "--json")
    assert [line["launch"] for line in json.loads(said.out)["launches"]] == [good.id]
    assert "bad" in said.err


def test_ls_asks_no_scheduler(desk: Any, fake_slurm: Any) -> None:
    """A scheduler that does not answer does not hold the list up."""
    desk.environ = fake_slurm.environ
    fake_slurm.fail("hang")
    launch = desk.freeze(kind=ClusterKind.slurm)
    said = desk.say("ls")
    assert launch.id in said.out
    assert said.err == f"hpckit: in {desk.folder}\n"


@pytest.fixture
def launches(desk: Any, writer: Any) -> Any:
    """Return a desk with three launches: accuracy 0.5 and failed, 0.9 and completed, none."""
    for minute, (name, accuracy) in enumerate((("poor", 0.5), ("good", 0.9), ("new", None))):
        launch = desk.freeze(name, sweep=[(f"name={name}",), ("seed=2",)], minute=minute)
        if accuracy is not None:
            attempt = writer(launch=launch)
            attempt.start()
            attempt.metrics(1, accuracy=accuracy)
            attempt.fail() if name == "poor" else attempt.complete()
    return desk


def names(desk: Any, *words: str) -> list[str]:
    """Return the names of the launches listed."""
    return [load["name"] for load in json.loads(desk.say("ls", "--json", *words).out)["launches"]]


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (("--failed",), ["poor"]),
        (("--state", "completed,failed"), ["good", "poor"]),
        (("--override", "name=[gn]*"), ["new", "good"]),
        (("--state", "pending", "-n", "2"), ["new", "good"]),
        (("--sort", "name"), ["good", "new", "poor"]),
        (("--sort", "-accuracy"), ["good", "poor", "new"]),
        (("--sort", "-failed", "--limit", "1"), ["poor"]),
    ],
)
def test_ls_lists_launches_with_runs_that_are_meant(
    launches: Any, words: tuple[str, ...], listed: list[str]
) -> None:
    """A launch is listed where a run of it is meant, in the order asked for."""
    assert names(launches, *words) == listed


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (("go",), ["good"]),
        (("new", "poor"), ["new", "poor"]),
        (("[gn]*",), ["new", "good"]),
        (("?oo?",), ["good", "poor"]),
        (("poor-2026*",), ["poor"]),
        (("oo",), []),
        (("poor", "--state", "completed"), []),
    ],
)
def test_ls_lists_launches_by_name(launches: Any, words: tuple[str, ...], listed: list[str]) -> None:
    """A beginning of the id, or a glob of id or name; several may be given."""
    assert names(launches, *words) == listed


def test_ls_says_that_nothing_is_named_so(launches: Any) -> None:
    """No such launch is no error, and the folder that was looked into is named."""
    said = launches.say("ls", "oo", "xx")
    assert (said.code, said.out) == (0, "")
    assert f"there are no launches named oo or xx in {launches.folder}" in said.err


def test_ls_shows_the_metric_it_sorts_by(launches: Any, writer: Any) -> None:
    """The value that put a launch where it stands is in the list; NaN of another run is none to sort by."""
    good = next(load_launch(path) for path in launches.folder.iterdir() if path.name.startswith("good"))
    diverged = writer(launch=good, index=1)
    diverged.start()
    diverged.metrics(1, accuracy=float("nan"))
    diverged.complete()
    lines = launches.say("ls", "--sort", "-accuracy").out.splitlines()
    assert "accuracy" in lines[0].split()
    assert "0.9" in lines[1].split()


def test_ls_says_how_many_a_filter_found_besides(launches: Any) -> None:
    """With a filter, launches that are meant are counted, no others."""
    said = launches.say("ls", "--state", "completed,failed", "-n", "1")
    assert "1 older not shown" in said.err


@pytest.mark.parametrize("names", [("",), (" ",), ("oo", "")])
def test_ls_refuses_an_empty_name(launches: Any, names: tuple[str, ...]) -> None:
    """An unset variable does not stand for all launches."""
    with pytest.raises(UsageError, match="an empty text"):
        launches.say("ls", *names)


def test_ls_counts_a_run_that_was_cancelled_before_it_began(desk: Any) -> None:
    """Slurm is not asked, and the wish alone says that it will not run."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)], kind=ClusterKind.slurm)
    desk.tell(launch, events.Submitted(at=launch.created_at, job_index=0, job="7"))
    desk.tell(launch, events.CancelRequested(at=launch.created_at, runs=(0,)))
    (line,) = json.loads(desk.say("ls", "--json").out)["launches"]
    assert line["states"] == {"pending": 1, "cancelled": 1}
    assert json.loads(desk.say("ls", "--state", "cancelled", "--json").out)["launches"]
