"""Promises of `hpckit diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import UsageError
from hpckit.model.launch import Resources
from hpckit.record.store import write_json


def diff(desk: Any, old: str, new: str, *words: str) -> dict[str, Any]:
    """Return what `diff --json` says."""
    document: dict[str, Any] = json.loads(desk.say("diff", old, new, *words, "--json").out)
    return document


def keys(differences: Any) -> dict[str, tuple[Any, Any, Any]]:
    """Return the differing keys with their values, and in which they are."""
    return {
        difference["key"]: (difference["old"], difference["new"], difference["only"])
        for difference in differences
    }


def test_diff_of_what_is_the_same_says_so(desk: Any) -> None:
    """Two equal runs differ in nothing, and the exit code is 0 either way."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)], files=("train.py",))
    found = diff(desk, f"{launch.id}.0", f"{launch.id}.1")
    assert (found["config"], found["resources"], found["environment"]) == ([], [], [])
    assert (found["code"]["same"], found["code"]["files"]) == (True, [])
    said = desk.say("diff", ".0", ".1")
    assert said.code == 0
    for section in ("configuration", "resources", "code", "environment"):
        assert f"{section}: the same" in said.out


def test_diff_names_keys_with_both_values(desk: Any) -> None:
    """Changed, added and removed keys; those of the resources apart."""
    old = desk.freeze("old", seed=1, env={"A": "1", "LONG": "x" * 500 + "1"})
    new = desk.freeze(
        "new",
        minute=1,
        seed=2,
        params={"lr": 0.1},
        env={"LONG": "x" * 500 + "2"},
        resources=Resources(tasks_per_node=2),
    )
    found = diff(desk, old.id, new.id)
    assert keys(found["config"]) == {
        "name": ("old", "new", None),
        "seed": (1, 2, None),
        "env.A": ("1", None, "old"),
        "env.LONG": ("x" * 500 + "1", "x" * 500 + "2", None),
        "params.lr": (None, 0.1, "new"),
    }
    assert keys(found["resources"]) == {"resources.tasks_per_node": (1, 2, None)}
    said = desk.say("diff", old.id, new.id)
    assert said.code == 0
    assert "  seed: 1 -> 2\n" in said.out
    assert "x" * 500 + "2" in said.out
    assert '  env.A: "1" -> (absent)' in said.out
    assert "  resources.tasks_per_node: 1 -> 2" in said.out


def test_diff_tells_values_apart_that_python_calls_equal(desk: Any) -> None:
    """1, 1.0 and true are three values, alone and in lists; NaN is the same as NaN."""
    nan = float("nan")
    old = desk.freeze("x", params={"a": 1, "b": 1, "c": [1], "d": {"e": 0}, "f": nan, "g": 0.0})
    new = desk.freeze(
        "x", minute=1, params={"a": True, "b": 1.0, "c": [1.0], "d": {"e": False}, "f": nan, "g": 0.0}
    )
    written = [
        (one["key"], repr(one["old"]), repr(one["new"])) for one in diff(desk, old.id, new.id)["config"]
    ]
    assert written == [
        ("params.a", "1", "True"),
        ("params.b", "1", "1.0"),
        ("params.c", "[1]", "[1.0]"),
        ("params.d.e", "0", "False"),
    ]


def test_diff_names_mappings_of_the_users_own_in_another_order(desk: Any) -> None:
    """For a function they are two models; variables of the environment have no order."""
    layers, env = {"conv": 1, "relu": 2}, {"A": "1", "B": "2"}
    turned: list[dict[str, Any]] = [dict(reversed(one.items())) for one in (layers, env)]
    old = desk.freeze("x", params={"net": {"layers": layers}}, env=env)
    new = desk.freeze("x", minute=1, params={"net": {"layers": turned[0]}}, env=turned[1])
    assert keys(diff(desk, old.id, new.id)["config"]) == {"params.net.layers": (layers, layers, None)}
    line = 'params.net.layers: {"conv": 1, "relu": 2} -> {"relu": 2, "conv": 1}'
    assert line in desk.say("diff", old.id, new.id).out


def test_diff_names_files_and_with_code_their_lines(shell: Any) -> None:
    """Real snapshots: what was added, removed and changed, and how."""
    words = ("cluster=local", "experiment=command", "command=[sh,-c,'exit 0']", "--wait")
    (shell.cwd / "train.py").write_text("a\nb\nc\n")
    (shell.cwd / "old.py").write_text("gone\n")
    (shell.cwd / "data.bin").write_bytes(b"\xff\x00")
    old = json.loads(shell("launch", *words, "--json").out)["launch"]
    (shell.cwd / "train.py").write_text("a\n\x1b[2Jnew\nc\n")
    (shell.cwd / "old.py").unlink()
    (shell.cwd / "new.py").write_text("come\n")
    (shell.cwd / "data.bin").write_bytes(b"\xfe\x00")
    new = json.loads(shell("launch", *words, "--changed-code", "--json").out)["launch"]
    code = json.loads(shell("diff", old, new, "--json").out)["code"]
    changes = {one["path"]: one["change"] for one in code["files"]}
    assert changes == {
        "train.py": "changed", "old.py": "removed", "new.py": "added", "data.bin": "changed"
    }  # fmt: skip
    assert (code["same"], code["diff"]) == (False, None)
    said = shell("diff", old, new, "--code").out
    for line in ("-b", "+\\x1b[2Jnew", "-gone", "+come", "# data.bin: it is no text"):
        assert line in said.splitlines()
    assert "\x1b" not in said


def test_diff_reads_nothing_outside_of_the_snapshots(desk: Any, tmp_path: Path) -> None:
    """Whatever a list of files names: not above the code, and not behind a link."""
    (tmp_path / "private").write_text("private text\n")
    launches = [desk.freeze(name, minute=n, files=("train.py",)) for n, name in enumerate("ab")]
    for launch, digest in zip(launches, "12", strict=True):
        launch.paths.code.chmod(0o700)
        (launch.paths.code / "link").symlink_to(tmp_path / "private")
        launch.paths.code_sums.write_text(
            "".join(f"{digest * 64}  {path}\n" for path in ("../../../private", "link", tmp_path / "private"))
        )
    said = desk.say("diff", launches[0].id, launches[1].id, "--code").out
    assert "private text" not in said
    assert "# link: it is behind a link" in said
    assert said.count("it is not below the snapshot") == 2


def test_diff_without_snapshots_compares_commits(desk: Any) -> None:
    """What cannot be known is said, not guessed."""
    old, new = desk.freeze("old"), desk.freeze("new", minute=1)
    for launch, commit in ((old, "1" * 40), (new, "2" * 40)):
        record = json.loads(launch.paths.code_record.read_text())
        write_json(launch.paths.code_record, {**record, "commit": commit, "identity": commit})
    found = diff(desk, old.id, new.id)["code"]
    assert (found["same"], found["files"]) == (False, None)
    assert found["commit"] == {"old": "1" * 40, "new": "2" * 40}
    said = desk.say("diff", old.id, new.id).out
    assert f"commit: {'1' * 40} -> {'2' * 40}" in said
    assert "files can be compared only with a snapshot of both" in said


def test_diff_compares_environments(desk: Any) -> None:
    """Python and each package, with both versions."""
    old, new = desk.freeze("old"), desk.freeze("new", minute=1)
    base = {"python": {"version": "3.11.1"}, "host": "a"}
    write_json(old.paths.environment, {**base, "packages": {"torch": "2.6", "old": "1"}})
    write_json(new.paths.environment, {**base, "packages": {"torch": "2.7", "new": "1"}})
    found = {one["name"]: (one["old"], one["new"]) for one in diff(desk, old.id, new.id)["environment"]}
    assert found == {"package torch": ("2.6", "2.7"), "package old": ("1", None), "package new": (None, "1")}
    assert "  package torch: 2.6 -> 2.7" in desk.say("diff", old.id, new.id).out


def test_diff_shows_results_side_by_side(desk: Any, writer: Any) -> None:
    """The last value of each metric of either, and both states."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    for index, metrics in ((0, {"loss": 0.5}), (1, {"loss": 0.25, "accuracy": 0.9})):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.metrics(3, **metrics)
        attempt.complete() if index else attempt.fail()
    (one,) = diff(desk, ".0", ".1")["results"]
    assert one["metrics"]["loss"] == {"old": 0.5, "new": 0.25}
    assert one["metrics"]["accuracy"] == {"old": None, "new": 0.9}
    assert one["state"] == {"old": "failed", "new": "completed"}
    lines = [line.split() for line in desk.say("diff", ".0", ".1").out.splitlines()]
    assert ["loss", "0.5", "0.25"] in lines


def test_diff_of_launches_pairs_runs_by_their_overrides(desk: Any) -> None:
    """In whatever order they are; what has no counterpart is named."""
    old = desk.freeze("old", sweep=[("a=1",), ("a=2",), ("a=3",)])
    new = desk.freeze("new", minute=1, seed=5, sweep=[("a=3",), ("a=1",)])
    found = diff(desk, old.id, new.id)
    pairs = [(one["old"], one["new"]) for one in found["results"]]
    assert pairs == [(f"{old.id}.0", f"{new.id}.1"), (f"{old.id}.2", f"{new.id}.0")]
    assert found["alone"] == [f"{old.id}.1"]
    (seed,) = [one for one in found["config"] if one["key"] == "seed"]
    assert seed["runs"] == 2
    by_order = desk.freeze("third", minute=2, sweep=[("b=1",), ("b=2",), ("b=3",)])
    pairs = [(one["old"], one["new"]) for one in diff(desk, old.id, by_order.id)["results"]]
    assert pairs == [(f"{old.id}.{index}", f"{by_order.id}.{index}") for index in range(3)]


def test_diff_of_one_run_and_several_is_refused(desk: Any) -> None:
    """It would not be clear with which."""
    several, one = desk.freeze("several", sweep=[("a=1",), ("a=2",)]), desk.freeze("one", minute=1)
    for words in ((several.id, one.id), (f"{several.id}.0", several.id)):
        with pytest.raises(UsageError, match="is one run, and"):
            desk.say("diff", *words)
