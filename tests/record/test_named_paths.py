"""Promises of hpckit.record.named_paths: what a run will not find is named, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpckit.record.named_paths import ProjectFolder, warn_about_command_paths, warn_about_config_paths
from hpckit.values import replace

KEYS = ("data", "data_path", "train", "pretrained", "tokenizer", "resume", "file", "lr", "model")
"""Keys of which most sound like something to read."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a project of which all below data, runs and cache is ignored."""
    names = ("data/x.npz", "data/sub/y.csv", "runs/old/last.pt", "cache/z.bin", "train.log")
    for name in (*names, "train.py", "kept/k.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def project(folder: Path, *, in_place: bool = False) -> ProjectFolder:
    """Return the project; what git does not ignore is frozen."""

    def missing(path: Path) -> str | None:
        inside = Path(os.path.normpath(path)).relative_to(folder).parts
        ignored = inside[:1] and inside[0] in {"data", "runs", "cache", "train.log"}
        return "git ignores it" if ignored else None

    return ProjectFolder(folder=folder, missing=missing, in_place=in_place)


def of_config(folder: Path, config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return key and value of what is warned of in a configuration."""
    return [(path.key, path.value) for path in warn_about_config_paths(config, project(folder))]


def of_command(folder: Path, *words: str) -> list[str]:
    """Return the words of a command that are warned of."""
    return [path.value for path in warn_about_command_paths(words, project(folder))]


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"params": {"data": "data/x.npz"}}, [("params.data", "data/x.npz")]),
        ({"params": {"data": "data"}}, [("params.data", "data")]),
        ({"model": {"stats": "data/sub/y.csv"}}, [("model.stats", "data/sub/y.csv")]),
        ({"sets": [{"name": "data/x.npz"}]}, [("sets.name", "data/x.npz")]),
        ({"params": {"checkpoint": "runs/old/last.pt"}}, [("params.checkpoint", "runs/old/last.pt")]),
        ({"params": {"data": "data/nope.npz"}}, [("params.data", "data/nope.npz")]),
        ({"params": {"data": "/no/such/x.npz"}}, [("params.data", "/no/such/x.npz")]),
        ({"params": {"data": "kept/k.csv"}}, []),
        ({"params": {"stats": "data/nope.npz"}}, []),
        ({"params": {"checkpoint": "runs/old"}}, []),
        ({"params": {"out": "runs/old", "log_dir": "data", "run_dir": "runs/old"}}, []),
        ({"params": {"cache_path": "cache/z.bin", "logfile": "train.log"}}, []),
        ({"env": {"DATA_DIR": "data"}}, [("env.DATA_DIR", "data")]),
        ({"output_dir": "data", "checkpoint": {"dir": "data"}, "name": "data"}, []),
    ],
)
def test_configured_paths(folder: Path, config: dict[str, Any], found: list[tuple[str, str]]) -> None:
    """What is read and will not be there is named; what is written, or frozen, is not."""
    assert of_config(folder, config) == found


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python train.py --data data/x.npz", ["data/x.npz"]),
        ("python train.py --data=data/x.npz", ["data/x.npz"]),
        ("python train.py -d data/x.npz", ["data/x.npz"]),
        ("python train.py data/x.npz", ["data/x.npz"]),
        ("python train.py data", ["data"]),
        ("python train.py data.path=data/x.npz", ["data/x.npz"]),
        ("python train.py +data.path=data/x.npz ~model", ["data/x.npz"]),
        ("python train.py --data data/nope.npz", ["data/nope.npz"]),
        ("env A=1 python train.py --data data/x.npz", ["data/x.npz"]),
        ("torchrun --nproc-per-node 2 train.py --data data/x.npz", ["data/x.npz"]),
        ("python train.py kept/k.csv train.py", []),
        ("python train.py --out runs/old", []),
        ("python train.py --output-dir data", []),
        ("python train.py --save-dir=runs/old --log train.log", []),
        ("python train.py hydra.run.dir=runs/old", []),
        ("python train.py --checkpoint-dir runs/old", []),
        ("python train.py runs", []),
        ("python train.py --mode data/nope.npz", []),
    ],
)
def test_commanded_paths(folder: Path, command: str, found: list[str]) -> None:
    """Values of options, of `key=value`, and positional words; not what an option writes to."""
    assert of_command(folder, *command.split()) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cd src && python train.py --data data/x.npz", ["data/x.npz"]),
        ("A=1 python train.py data/x.npz > data/x.npz", ["data/x.npz"]),
        ("cat data/x.npz | python train.py", ["data/x.npz"]),
        ("python train.py --data $HPCKIT_PROJECT/data/x.npz", []),
        ("python train.py > runs/old/last.pt 2>&1", []),
        ("python train.py | tee train.log", []),
        ("mkdir -p runs/old; touch runs/old/last.pt", []),
        ("echo 'unclosed", []),
    ],
)
def test_paths_in_a_line_for_a_shell(folder: Path, line: str, found: list[str]) -> None:
    """They are looked for, too, but for what the line writes or a variable begins."""
    assert of_command(folder, "bash", "-c", line) == found


def test_runs_in_the_project_itself_find_what_git_ignores(folder: Path) -> None:
    """With runtime.cwd=project only what exists nowhere is worth a word."""
    given = {"params": {"data": ["data/x.npz", "data/nope.npz"]}}
    found = warn_about_config_paths(given, project(folder, in_place=True))
    assert [one.value for one in found] == ["data/nope.npz"]


def test_warning_says_why_and_every_way_out(folder: Path) -> None:
    """The reason, the whole path, the variable for code, the working folder, and git."""
    (found,) = warn_about_command_paths(["python", "train.py", "data/x.npz"], project(folder))
    assert "the run will not find it: git ignores it" in found.message
    for cure in (f"{folder}/data/x.npz", "$HPCKIT_PROJECT", "runtime.cwd=project", "git add -f"):
        assert cure in found.hint


def test_path_of_a_command_and_of_the_key_it_is_from_is_named_once(folder: Path) -> None:
    """`--data ${params.data}` has its path from the configuration."""
    one = project(folder)
    found = [*warn_about_command_paths(["python", "train.py", "--data", "data/x.npz"], one)]
    found += warn_about_config_paths({"params": {"data": "data/x.npz"}}, one)
    assert [finding.key for finding in found] == ["command"]


def test_same_text_is_looked_at_once(folder: Path) -> None:
    """A sweep names the same data in each of its runs."""
    one = project(folder)
    runs = [{"params": {"data": "data/x.npz", "lr": lr}} for lr in range(50)]
    found = [finding for run in runs for finding in warn_about_config_paths(run, one)]
    assert len(found) == 1
    assert len(one.seen) == 1


WORD = st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True)
NUMBER = st.one_of(st.integers().map(str), st.floats().map(str))
NO_PATHS = st.one_of(
    NUMBER,
    WORD,  # a choice of Hydra's, an optimizer, a mode
    st.builds("{}/{}".format, WORD, WORD),  # a metric, a choice in a group
    st.builds("{}/{}-{}.{}b".format, WORD, WORD, st.integers(0, 99), st.integers(0, 99)),  # a hub
    st.builds("{}/Llama-{}.{}-8B-Instruct".format, WORD, st.integers(1, 9), st.integers(0, 9)),
    st.builds("{}://{}/{}.npz".format, st.sampled_from(["s3", "https", "gs"]), WORD, WORD),
    st.builds("{}/*.npz".format, WORD),
    st.builds("${{{}}}/x.npz".format, WORD),
    st.builds("$HOME/{}.csv".format, WORD),
    st.builds("{}.{}.{}".format, WORD, WORD, WORD),  # a module, a class
    st.builds("{}: {}, {}".format, WORD, WORD, WORD),
    st.builds("{}/{{epoch}}.pt".format, WORD),
    st.builds("{}@{}.org".format, WORD, WORD),
    st.text(max_size=30).filter(lambda text: "/" not in text),
    st.text(alphabet="/.~-_ ", max_size=9).filter(lambda text: not text.startswith("/")),
    st.just("x" * 5000),
    st.just("a/" * 400 + "b"),
)


@given(key=st.sampled_from(KEYS), value=NO_PATHS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_said_of_what_is_no_path(folder: Path, key: str, value: str) -> None:
    """Neither in a configuration nor in a command, under whatever key: no false alarm, no error."""
    path = folder / value if "\0" not in value and len(value) < 200 else None
    if path is not None and path.exists():
        return
    assert of_config(folder, {"params": {key: value}, key: [value]}) == []
    assert of_command(folder, "python", "train.py", f"--{key}", value) == []
    assert of_command(folder, "python", "train.py", f"{key}={value}", value) == []
    of_command(folder, "bash", "-c", f"python train.py {value}")


def test_path_that_only_a_container_has_is_no_slip(folder: Path) -> None:
    """It is a mount's, or below it."""
    words = ["python", "train.py", "--data", "/nowhere/data/a.bin"]
    assert len(list(warn_about_command_paths(words, project(folder)))) == 1
    inside = replace(project(folder), elsewhere=("/nowhere/data",))
    assert list(warn_about_command_paths(words, inside)) == []
