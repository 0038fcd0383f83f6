"""Promises of docs/explanations/security.md about variables that look like secrets."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_world import shell, slurm_shell
from tiers import thorough
from waiting import until

__all__ = ["shell", "slurm_shell"]

pytestmark = pytest.mark.slow

FIRST, SECOND, SITE, SHELL = (
    "hf_FirstValue0123456789",
    "hf_SecondValue0123456789",
    "value-of-the-site",
    "value-of-the-shell",
)
VALUES = (FIRST, SECOND, SITE, SHELL)

# What it was given, and what anybody sees of its ancestors up to the words that the user typed.
TRAIN = """\
import json, os, sys
from pathlib import Path
project = Path(os.environ["HPCKIT_PROJECT"])
seen, pid = [], os.getpid()
while pid > 1:
    text = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\\0", " ")
    if "hpckit launch" in text or "hpckit rerun" in text or "pytest" in text:
        break
    seen.append(text)
    pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
names = ("HF_TOKEN", "HEADER", "SITE_PASSWORD", "TOKENIZERS_PARALLELISM")
given = {name: os.environ.get(name) for name in names}
folder = project.parent / "given"
folder.mkdir(exist_ok=True)
(folder / f"{len(list(folder.iterdir())):03d}").write_text(json.dumps([given, seen]))
sys.exit(0 if (project / "fixed").exists() else 1)
"""
TASK = ("experiment=command", "command=python train.py", "recovery=never")
SECRET = (
    f"+env.HF_TOKEN={FIRST},{SECOND}",
    "+env.HEADER='key ${oc.env:OF_MY_SECRET}'",
    f"+cluster.env.SITE_PASSWORD={SITE}",
    "+env.TOKENIZERS_PARALLELISM='false'",
)


def given_to(token: str) -> Mapping[str, str]:
    """Return the variables that a rank of the sweep has to see."""
    return {
        "HF_TOKEN": token,
        "HEADER": f"key {SHELL}",
        "SITE_PASSWORD": SITE,
        "TOKENIZERS_PARALLELISM": "false",
    }


def ranks_of(shell: Any) -> list[Any]:
    """Return what each rank was given and the arguments of its ancestors, in order of start."""
    return [tuple(json.loads(path.read_text())) for path in sorted((shell.cwd.parent / "given").iterdir())]


def hits(texts: Iterable[str]) -> list[str]:
    """Return the texts that hold one of the secrets."""
    return [text for text in texts if any(value in text for value in VALUES)]


def files_with_secrets(folder: Path) -> list[str]:
    """Return the files below a folder that hold one of the secrets, by name or content."""
    # Not by rglob: a run that has just ended still removes its empty folder.
    walked = (Path(top, name) for top, _, names in os.walk(folder) for name in names)
    found = [path for path in walked if path.is_file()]
    assert hits(map(str, found)) == []
    inside = [path for path in found if hits([content(path)])]
    return sorted(str(path.relative_to(folder)) for path in inside)


def content(path: Path) -> str:
    """Return what a file holds; a run that has just ended still removes links."""
    try:
        return path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""


def answers(shell: Any, launch: str) -> list[str]:
    """Return what every verb that shows something says, on both streams."""
    sweep = ("launch", "-m", *TASK, *SECRET)
    words = [
        (*sweep, "--cfg"),
        (*sweep, "--dry-run", "--rerun"),
        ("check", *sweep[1:], "--json"),
        ("launch", *TASK, *SECRET),
        (*sweep, "resources.nodes=0"),
        (*sweep, "resources.nodes=x"),
        ("launch", "-m", *TASK, f"env.HF_TOKEN={FIRST},{SECOND}"),
        *((verb, launch) for verb in ("status", "results", "logs", "resume", "clean")),
        *((verb, launch, "--json") for verb in ("status", "results")),
        ("results", launch, "--override", f"env.HF_TOKEN={FIRST}"),
        ("ls", "--json"),
        ("ls",),
        ("rerun", f"{launch}.1", "--dry-run", "--json"),
    ]
    said = enumerate(shell(*word) for word in words)
    return [f"answer {place}: {one.out}{one.err}" for place, one in said]


@pytest.fixture
def project(shell: Any) -> Any:
    """Return a shell in a project whose program fails until it is fixed."""
    (shell.cwd / "train.py").write_text(TRAIN)
    shell.environ["OF_MY_SECRET"] = SHELL
    return shell


def test_security_secret_variables_stand_in_one_file_and_reach_the_ranks(project: Any) -> None:
    """Through a sweep, a resume and a rerun: the ranks have them, and nothing else shows them."""
    task = (*TASK, "cluster=local")
    first = project("launch", "-m", "--wait", *task, *SECRET)
    (folder,) = project.outputs
    (project.cwd / "fixed").touch()
    again = project("resume", folder.name, "--wait")
    rerun = project("rerun", f"{folder.name}.1", "--wait", "--json")
    assert (first.code, again.code, rerun.code) == (1, 0, 0), (again.err, rerun.err)

    given, arguments = zip(*ranks_of(project), strict=True)
    sweep = [given_to(FIRST), given_to(SECOND)]
    assert list(given) == [*sweep, *sweep, given_to(SECOND)]
    assert hits(text for seen in arguments for text in seen) == []
    assert all(any("supervise" in text for text in seen) for seen in arguments)

    second = Path(json.loads(rerun.out)["dir"])
    for one in (folder, second):
        assert files_with_secrets(one) == ["secrets.json"]
        assert stat.S_IMODE((one / "secrets.json").stat().st_mode) == 0o600
    said = [first.out, first.err, again.out, again.err, rerun.out, rerun.err]
    assert hits([*said, *answers(project, folder.name)]) == []
    launch = json.loads((folder / "launch.json").read_text())
    assert "+env.HF_TOKEN=***" in launch["arguments"]
    assert all("+env.HF_TOKEN=***" in run["overrides"] for run in launch["runs"])
    config = json.loads((folder / "configs" / "00000.jsonl").read_text().splitlines()[0])
    assert config["env"] == {"HF_TOKEN": "***", "HEADER": "***", "TOKENIZERS_PARALLELISM": "false"}


@thorough
def test_security_batch_script_has_no_secret_and_is_what_was_shown(slurm_shell: Any) -> None:
    """On Slurm: `--dry-run` shows what is submitted, to the letter, and the ranks have all."""
    shell = slurm_shell
    (shell.cwd / "train.py").write_text(TRAIN)
    (shell.cwd / "fixed").touch()
    shell.environ["OF_MY_SECRET"] = SHELL
    words = ("-m", *TASK, *SECRET, "+cluster.env.SITE=plain", "cluster=slurm")
    shown = json.loads(shell("launch", *words, "--dry-run", "--json").out)["scripts"]
    done = shell("launch", *words, "--json")
    assert done.code == 0, done.err
    folder = Path(json.loads(done.out)["dir"])
    text = (folder / "job-0.sbatch").read_text()
    assert shown[0]["text"].replace(Path(shown[0]["path"]).parent.name, folder.name) == text
    assert "export SITE=plain" in text
    assert "SITE_PASSWORD" not in text
    until(lambda: len(list((shell.cwd.parent / "given").glob("*"))) == 2)
    until(lambda: shell("status", "--json").out.count('"state": "completed"') == 2)
    assert sorted(given["HF_TOKEN"] for given, _ in ranks_of(shell)) == [FIRST, SECOND]
    assert all(given["SITE_PASSWORD"] == SITE for given, _ in ranks_of(shell))
    assert hits(text for _, seen in ranks_of(shell) for text in seen) == []
    assert files_with_secrets(folder) == ["secrets.json"]


def test_security_search_through_secrets_is_refused(shell: Any) -> None:
    """A study writes down what it gave to a run; the refusal does not show it, either."""
    pytest.importorskip("optuna")
    words = ("-m", *TASK, "sweep.sampler=optuna", "sweep.samples=2", "sweep.metric=loss")
    said = shell("launch", *words, f"+env.HF_TOKEN={FIRST},{SECOND}", "cluster=local")
    assert said.code == 2
    assert "env.HF_TOKEN looks like a secret" in said.err
    assert hits([said.err]) == []
    assert shell.outputs == []
