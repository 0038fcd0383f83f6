"""Promises of `hpckit resume RUN KEY=VALUE`: a run continues with other settings, and says so."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

from hpckit.model import events
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.settings import Parallel, replace_superseded_overrides
from hpckit.record.launches import load_frozen_config, load_launch, load_run_settings

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
import hpckit
run = hpckit.attach()
print("layout:", run.layout, flush=True)
sys.exit(0 if os.path.exists(os.path.join(os.environ["HPCKIT_PROJECT"], "fixed")) else 1)
"""
QUICK = ("experiment=command", "cluster=local", "resources.tasks_per_node=2", "command=false")


def failed(shell: Any, *words: str) -> Path:
    """Launch a run of two ranks that fails; return its folder."""
    said = shell("launch", "--wait", *QUICK, *words)
    assert said.code == 1, said.err
    return Path(shell.outputs[-1])


def changes(shell: Any, folder: Path) -> list[events.SettingsChanged]:
    """Return the layouts that resumes recorded."""
    return [event for event in shell.events(folder) if isinstance(event, events.SettingsChanged)]


def test_ranks_of_the_next_attempt_have_the_other_layout(shell: Any) -> None:
    """The same run goes on, in its folder, with other sizes; what was frozen is not touched."""
    (shell.cwd / "job.py").write_text(SCRIPT)
    folder = failed(shell, "command=python job.py")
    before = (folder / "configs" / "00000.jsonl").read_bytes()
    (shell.cwd / "fixed").touch()
    said = shell("resume", "parallel=fsdp", "--wait")
    assert said.code == 0, said.out + said.err
    assert "layout  0: shard 2" in said.out
    logs = sorted((folder / "runs" / "00000" / "attempts").glob("*/**/rank-00001.log"))
    assert [log.read_text().strip() for log in logs] == ["layout: replicate 2", "layout: shard 2"]
    assert (folder / "configs" / "00000.jsonl").read_bytes() == before
    launch = load_launch(folder)
    assert load_run_settings(launch, 0)[0].parallel == Parallel(replicate=1, shard="rest")
    assert load_frozen_config(launch, 0)["parallel"]["shard"] == 1


@thorough
def test_other_layout_shows_in_status_show_and_diff(shell: Any) -> None:
    """Nobody has to know of the resume to see in which layout a run is."""
    failed(shell, "+lr=1")
    failed(shell, "+lr=1")
    assert shell("resume", "parallel.shard=2", "parallel.replicate=rest").code == 0
    (run,) = json.loads(shell("status", "--json").out)["runs"]
    assert (run["overrides"]["parallel.shard"], run["overrides"]["lr"]) == (2, 1)
    shown = shell("show").out
    assert "parallel.shard=2 parallel.replicate=rest since" in shown
    document = json.loads(shell("show", "--json").out)
    assert document["config"]["parallel"]["shard"] == 2
    assert document["settings_changes"][0]["words"] == ["parallel.shard=2", "parallel.replicate=rest"]
    (difference,) = json.loads(shell("diff", "@-2", "@-1", "--json").out)["config"]
    assert difference["key"] == "parallel.shard"


@thorough
def test_resumes_build_on_each_other_and_a_plain_one_keeps_the_layout(shell: Any) -> None:
    """A key is set in the layout that the run has now; a choice of the group replaces it all."""
    folder = failed(shell)
    present = []
    for words in (["parallel=tensor"], [], ["parallel.sequence=false"], ["parallel=hsdp"]):
        assert shell("resume", *words, "--wait").code == 1
        present.append(load_run_settings(load_launch(folder), 0)[0].parallel)
    tensor = Parallel(tensor="node")
    assert present[:2] == [tensor, tensor]
    assert present[2] == Parallel(tensor="node", sequence=False)
    assert present[3] == Parallel(shard="node")
    assert len(changes(shell, folder)) == 3
    assert load_launch(folder).overrides(0)[-1] == "parallel=hsdp"


REFUSED = {
    "parallel.shard=3 parallel.replicate=2": "parallel: replicate 2 x shard 3 is 6 ranks",
    "seed=7": "resume cannot change seed",
    "+parallel.shard=2": "resume cannot change +parallel.shard",
    "parallelism=tensor": "resume cannot change parallelism",
    "parallel=nothing": "parallel",
    "parallel.shards=2": "parallel.shards",
    "parallel.shard=1,2": "several values",
    "resources.gpus_per_node=1": "resume cannot change resources.gpus_per_node",
    "resources.nodes=2": "What may change is the layout",
    "resources.timeout_min=9": "runs on this machine, where nothing reads resources.timeo",
    "parallel.shard=[1]": "parallel.shard",
    "parallel.shard=${seed}": "parallel.shard",
    "parallel.schedule=2F2B": "not a known schedule",
}


def test_what_cannot_be_is_refused_before_anything_changes(shell: Any) -> None:
    """One error names the word; no event is written, and nothing is started."""
    folder = failed(shell)
    before = shell.events(folder)
    for words, told in REFUSED.items():
        said = shell("resume", *words.split())
        assert said.code == 2, words
        assert told in said.err
        assert said.err.count("\n") >= 2, "the error, and what to do"
        assert "Traceback" not in said.err
        assert shell.events(folder) == before


def test_slurm_is_asked_for_what_a_resume_says_from_then_on(slurm_shell: Any) -> None:
    """A plain resume and the run's record keep it; what is not named stays as it was frozen."""
    words = ("cluster=slurm", "resources.timeout_min=5", "resources.mem_gb=2", "resources.qos=q")
    done = slurm_shell("launch", *words, "--json", "--", "false")
    assert done.code == 0, done.err
    folder = Path(json.loads(done.out)["dir"])
    assert slurm_shell("cancel").code == 0
    wrong = slurm_shell("resume", ".0", "resources.timeout_min=-1")
    assert (wrong.code, "resources.timeout_min" in wrong.err) == (2, True)
    refused = slurm_shell("resume", ".0", "resources.partition=none")
    assert (refused.code, changes(slurm_shell, folder)) == (3, []), refused.err
    new = ("resources.timeout_min=1.5h", "cluster.partition=urgent", "resources.exclude='n[1,2]'")
    shown = slurm_shell("resume", ".0", *new, "--dry-run").out
    assert "asks    0: timeout_min=90, partition=urgent, exclude=n[1,2]" in shown
    assert changes(slurm_shell, folder) == []
    done = slurm_shell("resume", ".0", *new, "--json")
    assert done.code == 0, done.err
    resumed = json.loads(done.out)
    (told,) = resumed["new_layouts"]
    assert told["resources"] == {"timeout_min": 90, "partition": "urgent", "exclude": "n[1,2]"}
    assert slurm_shell("cancel").code == 0
    assert slurm_shell("resume", ".0", "resources.mem_gb=4").code == 0
    for index, memory in ((1, 2), (2, 4)):
        script = (folder / f"job-{index}.sbatch").read_text()
        asked = re.findall(r"#SBATCH --(mem|time|qos|partition|exclude)=(\S+)", script)
        assert dict(asked) == {
            "mem": f"{memory}G",
            "time": "0-01:30:00",
            "qos": "q",
            "partition": "urgent",
            "exclude": "n[1,2]",
        }
    about = slurm_shell("show").out
    assert "timeout_min=90" in about
    assert "resumed      resources.timeout_min=1.5h" in about


def test_job_waits_for_what_a_resume_says(slurm_shell: Any) -> None:
    """Of a run that had an attempt only the launch's own dependency is dropped."""
    words = ("cluster=slurm", "resources.dependency=afterany:1")
    folder = Path(json.loads(slurm_shell("launch", *words, "--json", "--", "false").out)["dir"])
    assert slurm_shell("cancel").code == 0
    load_launch(folder).paths.run(0).attempt(1).folder.mkdir(parents=True)
    for index, new in enumerate((["resources.dependency=afterok:2"], []), 1):
        assert slurm_shell("resume", ".0", *new).code == 0
        script = (folder / f"job-{index}.sbatch").read_text()
        assert re.findall("#SBATCH --dependency=(.*)", script) == (["afterok:2"] if new else [])
        assert slurm_shell("cancel").code == 0


def test_refused_resume_leaves_the_record_as_it_was(slurm_shell: Any) -> None:
    """By what launch checks; the next resume is not hindered by it."""
    done = slurm_shell("launch", "cluster=slurm", "--json", "--wait", "--", "false")
    assert done.code == 1, done.err
    (folder,) = (one.parent for one in slurm_shell.cwd.glob("outputs/*/launch.json"))

    def record() -> dict[Path, bytes]:
        files = (one for one in folder.rglob("*") if one.is_file())
        return {file: file.read_bytes() for file in files if "resume.lock" not in file.parts}

    before = record()
    words = ("resources.timeout_min=99999999", "cluster.partition=nope", "resources.mem_gb=1e9")
    for word, more in product(words, ((), ("--dry-run",))):
        said = slurm_shell("resume", ".0", word, *more)
        assert said.code in {2, 3}, said.err
        assert "Traceback" not in said.err
        assert record() == before
    assert slurm_shell("resume", ".0").code == 0


def test_resume_takes_lists_and_options_of_slurm_without_quotes(slurm_shell: Any) -> None:
    """A run has one value of each; how many GPUs it has may not change."""
    done = slurm_shell("launch", "cluster=slurm", "--json", "--", "false")
    folder = Path(json.loads(done.out)["dir"])
    assert slurm_shell("cancel").code == 0
    said = slurm_shell("resume", ".0", "resources.gres=gpu:2")
    assert (said.code, "another number of GPUs" in said.err) == (2, True)
    words = ("resources.exclude=n1,n2", "resources.exclusive=true", "resources.cpus_per_task=1")
    more = ("resources.additional_parameters.nice=5", "resources.gres=tmp:1,lic:2")
    said = slurm_shell("resume", ".0", *words, *more, "--no-check")
    assert said.code == 0, said.err
    script = (folder / "job-1.sbatch").read_text()
    for line in ("exclude=n1,n2", "exclusive", "nice=5", "gres=tmp:1,lic:2"):
        assert f"#SBATCH --{line}\n" in script


def test_no_run_is_resumed_where_local_runs_are_ruled_out(shell: Any) -> None:
    """Refused whole, before anything is written."""
    folder = failed(shell)
    before = shell.events(folder)
    shell.environ = {**shell.environ, "HPCKIT_NO_LOCAL": "1"}
    for more in ((), ("--dry-run",)):
        said = shell("resume", *more)
        assert (said.code, "HPCKIT_NO_LOCAL" in said.err) == (2, True)
    assert shell.events(folder) == before


def test_misspelt_layout_is_told_of_although_nothing_is_left_to_resume(shell: Any) -> None:
    """Else a slip would look like an answer."""
    assert shell("launch", "--wait", *QUICK, "command=true").code == 0
    said = shell("resume", "parallel=hsdp", "parallel.shrad=2")
    assert said.code == 2
    assert "parallel.shrad" in said.err
    assert shell("resume", "parallel=hsdp", "parallel.shard=2").code == 0


def test_dry_run_says_the_layout_and_records_nothing(shell: Any) -> None:
    """`resume --dry-run` is the way to try a layout."""
    folder = failed(shell)
    shown = shell("resume", "parallel=fsdp", "--dry-run")
    assert "layout  0: shard 2\n" in shown.out
    words = ("parallel=fsdp", "parallel.params=bf16", "parallel.compile=true")
    shown = shell("resume", *words, "--dry-run")
    assert "layout  0: shard 2, params=bf16, compile=true\n" in shown.out
    document = json.loads(shell("resume", "parallel=fsdp", "--dry-run", "--json").out)
    assert document["new_layouts"][0]["layout"]["shard"] == 2
    assert changes(shell, folder) == []


@thorough
def test_rerun_takes_the_layout_that_the_run_had_last(shell: Any) -> None:
    """A rerun computes what the run computed in the end."""
    folder = failed(shell)
    assert shell("resume", "parallel=fsdp", "--wait").code == 1
    assert shell("rerun", "--wait").code == 1
    (again,) = set(shell.outputs) - {folder}
    launch = load_launch(again)
    assert load_run_settings(launch, 0)[0].parallel.shard == "rest"
    assert "parallel=fsdp" in launch.runs[0].overrides


def test_words_replace_what_they_make_void() -> None:
    """Overrides are shown as they would be typed for the run as it is now."""
    words = ("seed=1", "parallel.shard=2", "parallel=hsdp", "+x=1")
    assert replace_superseded_overrides(words, ["parallel=tensor"]) == ("seed=1", "+x=1", "parallel=tensor")
    assert replace_superseded_overrides(("parallel.shard=2",), ["parallel.shard=4"]) == ("parallel.shard=4",)
    assert replace_superseded_overrides(("parallelism=2",), ["parallel=x"]) == ("parallelism=2", "parallel=x")
    assert LaunchConfig(name="x").parallel == Parallel()
