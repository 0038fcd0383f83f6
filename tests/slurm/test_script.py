"""What the rendered batch script promises: its text, its quoting, its templates."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import TemplateError
from hpckit.model.plan import LaunchPlan
from hpckit.model.stages import DependencyType, StageDependency
from hpckit.planning.jobs.service_jobs import SatelliteOrder, build_auto_resume_job, build_satellite_job
from hpckit.slurm.script import render_batch_script

SHIPPED = Path(__file__).parents[2] / "slurm_templates"
GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = "/data/outputs/digits-20260102-030405-ab12"
UPDATE = "HPCKIT_UPDATE_GOLDEN"
HOSTILE = "a 'b' \"c\" $(touch pwned) `touch pwned` \\ # % ! ü; touch pwned"

PlanMaker = Callable[..., LaunchPlan]

SHAPES: dict[str, dict[str, Any]] = {
    "one_cpu": {},
    "one_gpu": {"gpus_per_node": 1, "cpus_per_task": 8, "mem_gb": 32},
    "multi_node": {"nodes": 2, "tasks_per_node": 4, "gpus_per_node": 4, "requeue": True},
    "spare_node": {"nodes": 2, "spare_nodes": 1, "gpus_per_node": 4, "requeue": True},
    "fewer_nodes": {"nodes": 4, "min_nodes": 2, "exclusive": True},
    "no_fewer_nodes": {"nodes": 4, "min_nodes": 4},
    "array": {"runs": 6, "array_parallelism": 4},
    "array_of_multi_node": {"runs": 300, "nodes": 2, "tasks_per_node": 2},
    "hostile": {
        "folder": f"/data/{HOSTILE.replace('/', '').replace(chr(92), '')}/%j",
        "comment": f"{HOSTILE}\nsecond line",
        "constraint": "a&b|[c*2]",
        "python": "/opt/it's here/python",
    },
    "all_options": {
        "mem_gb": 1.5,
        "timeout": timedelta(days=1, hours=2, minutes=3),
        "partition": "gpu",
        "account": "physics",
        "qos": "long",
        "constraint": "a100",
        "nodelist": "n[1-4]",
        "exclude": "n3",
        "reservation": "maintenance",
        "switches": "1@60",
        "segment": 1,
        "gres": "gpu:a100:2",
        "exclusive": True,
        "dependency": "afterok:12:13",
        "comment": "a comment",
        "mail_type": "END,FAIL",
        "mail_user": "me@example.org",
        "additional_parameters": (
            ("nice", "5"),
            ("spread_job", True),
            ("export", None),
            ("overcommit", False),
        ),
    },
    "modules_and_setup": {
        "modules": ["cuda/12.4", "it's odd"],
        "env": {"NCCL_SOCKET_IFNAME": "ib0", "GREETING": "it's $HOME"},
        "setup": ["source ~/venv/bin/activate", "ulimit -n 65536"],
    },
}


def render_one(plan: LaunchPlan, *folders: Path) -> str:
    """Render the only job of a plan."""
    return render_batch_script(plan, plan.jobs[0], [*folders, SHIPPED])


@pytest.mark.parametrize("shape", SHAPES)
def test_script_is_the_golden_text(shape: str, plan_of_one_job: PlanMaker) -> None:
    """A change of the template shows as a change of a golden file, never by surprise."""
    text = render_one(plan_of_one_job(**{"folder": FOLDER, **SHAPES[shape]}))
    golden = GOLDEN / f"job_{shape}.sbatch"
    if os.environ.get(UPDATE):
        golden.write_text(text, encoding="utf-8")
    expected = golden.read_text(encoding="utf-8") if golden.exists() else ""
    assert text == expected, (
        f"{golden} differs from what is rendered; if that is meant: {UPDATE}=1 pytest {__file__}"
    )


def test_script_of_a_stage_is_the_golden_text(plan_of_one_job: PlanMaker) -> None:
    """It says what it is to be submitted with, for who does so by hand; the rest is as ever."""
    plan = plan_of_one_job(folder=FOLDER, runs=3)
    after = tuple(StageDependency(job=job, kind=DependencyType.afterok) for job in (0, 2))
    text = render_batch_script(plan, replace(plan.jobs[0], after=after), [SHIPPED])
    golden = GOLDEN / "job_of_a_stage.sbatch"
    if os.environ.get(UPDATE):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("shape", SHAPES)
def test_script_is_read_by_bash(shape: str, plan_of_one_job: PlanMaker) -> None:
    """Whatever the values, bash finds no error in the script."""
    text = render_one(plan_of_one_job(**{"folder": FOLDER, **SHAPES[shape]}))
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("folder_name", ["plain", HOSTILE.replace("\\", ""), "two\nlines"])
def test_script_hands_its_folder_on_unharmed(
    folder_name: str, plan_of_one_job: PlanMaker, tmp_path: Path
) -> None:
    """A folder with quotes, dollars and line breaks arrives as one word and runs nothing."""
    folder = tmp_path / folder_name
    folder.mkdir()
    (folder / "launch.json").write_text("{}")
    plan = plan_of_one_job("/plain", python=str(_argument_printer(tmp_path)))
    text = render_one(plan).replace("folder=/plain", f"folder={_quoted(folder)}")
    done = subprocess.run(["bash", "-c", text], text=True, capture_output=True, check=True, cwd=tmp_path)
    words = done.stdout.partition("\n")[2].removesuffix("\0").split("\0")
    assert words == ["-P", "-m", "hpckit", "supervise", str(folder), "--job", "0"]
    assert not (tmp_path / "pwned").exists()


def _argument_printer(folder: Path) -> Path:
    program = folder / "it's a python"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    program.chmod(0o755)
    return program


def _quoted(folder: Path) -> str:
    from hpckit.slurm.quoting import quote_for_shell  # noqa: PLC0415

    return quote_for_shell(folder)


def test_script_says_which_node_cannot_read_which_folder(plan_of_one_job: PlanMaker, tmp_path: Path) -> None:
    """Where the frozen folder is not visible, node and folder are named; the exit code is 66."""
    text = render_one(plan_of_one_job(tmp_path / "not there"))
    done = subprocess.run(["bash", "-c", text], text=True, capture_output=True, check=False)
    assert done.returncode == 66
    assert f"cannot read the frozen launch folder {tmp_path}/not there" in done.stderr
    assert os.uname().nodename in done.stderr


def test_script_stops_where_a_module_is_missing(plan_of_one_job: PlanMaker, tmp_path: Path) -> None:
    """A module that does not load ends the job with a message, before anything is run."""
    (tmp_path / "launch.json").write_text("{}")
    text = render_one(plan_of_one_job(tmp_path, modules=["cuda/99"], python="false"))
    without = "module() { return 1; }\n" + text
    done = subprocess.run(["bash", "-c", without], text=True, capture_output=True, check=False)
    assert done.returncode == 69
    assert "cuda/99" in done.stderr


def test_missing_template_names_the_folders_searched(plan_of_one_job: PlanMaker, tmp_path: Path) -> None:
    """A template that is in none of the folders is refused with all of them, in their order."""
    with pytest.raises(TemplateError) as caught:
        render_one(plan_of_one_job(FOLDER, template="nope.j2"), tmp_path)
    message = caught.value.message
    assert "'nope.j2'" in message
    assert message.index(str(tmp_path)) < message.index(str(SHIPPED))


def test_undefined_variable_is_named_with_its_template(plan_of_one_job: PlanMaker, tmp_path: Path) -> None:
    """A variable that does not exist is an error with its name, its template and its line."""
    (tmp_path / "mine.j2").write_text("#!/bin/bash\n{{ tasks_per_nod | shell }}\n")
    with pytest.raises(TemplateError) as caught:
        render_one(plan_of_one_job(FOLDER, template="mine.j2"), tmp_path)
    assert "'tasks_per_nod' is undefined" in caught.value.message
    assert "mine.j2, line 2" in caught.value.message
    assert "tasks_per_node" in caught.value.hint


def test_value_without_a_filter_is_refused(plan_of_one_job: PlanMaker, tmp_path: Path) -> None:
    """A template cannot forget to quote: a text that went through no filter is an error."""
    (tmp_path / "mine.j2").write_text("#!/bin/bash\necho {{ job_name }}\n")
    with pytest.raises(TemplateError, match=r"mine\.j2, line 2: .* without a filter"):
        render_one(plan_of_one_job(FOLDER, template="mine.j2"), tmp_path)


def test_syntax_error_names_template_and_line(plan_of_one_job: PlanMaker, tmp_path: Path) -> None:
    """A template that is no Jinja2 is an error with its name and line."""
    (tmp_path / "mine.j2").write_text("#!/bin/bash\n{% if %}\n")
    with pytest.raises(TemplateError, match=r"mine\.j2, line 2"):
        render_one(plan_of_one_job(FOLDER, template="mine.j2"), tmp_path)


@pytest.mark.parametrize("name", ["job.sbatch.j2", "site.j2"])
@pytest.mark.parametrize("place", ["searched", "absolute"])
def test_own_template_extends_the_shipped_one(
    name: str, place: str, plan_of_one_job: PlanMaker, tmp_path: Path
) -> None:
    """A site adds to a block of the shipped template, also from a template of the same name."""
    (tmp_path / name).write_text(
        '{% extends "hpckit/job.sbatch.j2" %}'
        "{% block setup %}{{ super() }}echo {{ job_name | shell }}\n{% endblock %}"
    )
    absolute = place == "absolute"
    template = str(tmp_path / name) if absolute else name
    plan = plan_of_one_job(FOLDER, template=template, setup=["true"])
    text = render_one(plan) if absolute else render_one(plan, tmp_path)
    end = "\ntrue\nbuiltin trap - ERR EXIT DEBUG\nunset -f trap\n"
    assert f"{end}echo digits-20260102-030405-ab12\n" in text
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=")


def test_template_that_extends_itself_is_refused(plan_of_one_job: PlanMaker, tmp_path: Path) -> None:
    """A template of the shipped one's name that extends itself is an error that says how to."""
    (tmp_path / "job.sbatch.j2").write_text('{% extends "job.sbatch.j2" %}')
    with pytest.raises(TemplateError) as caught:
        render_one(plan_of_one_job(FOLDER), tmp_path)
    assert "hpckit/job.sbatch.j2" in caught.value.hint


def test_block_that_the_extended_template_lacks_is_refused(
    plan_of_one_job: PlanMaker, tmp_path: Path
) -> None:
    """Nothing of it would be in the script; a block within another one is fine."""
    own = tmp_path / "job.sbatch.j2"
    text = '{% extends "hpckit/job.sbatch.j2" %}\n{% block setpu %}\necho one\n{% endblock %}'
    own.write_text(text)
    with pytest.raises(TemplateError, match="has no block setpu") as no:
        render_one(plan_of_one_job(FOLDER), tmp_path)
    assert "line 2 of job.sbatch.j2" in no.value.message
    assert no.value.hint.startswith("did you mean setup? ")
    within = "{{ super() }}{% block mine %}\necho one\n{% endblock %}"
    own.write_text(text.replace("setpu", "setup").replace("\necho one\n", within))
    assert "echo one" in render_one(plan_of_one_job(FOLDER), tmp_path)
    own.rename(tmp_path / "base.j2")
    own.write_text('{% extends "base.j2" %}{% block mine %}echo two\n{% endblock %}')
    assert "echo two" in render_one(plan_of_one_job(FOLDER), tmp_path)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"account": "a\nb"}, "line break"),
        ({"folder": "/data/a\nb"}, "line break"),
        ({"folder": "/data/a\\b"}, "backslash"),
        ({"folder": "/data/\udcff"}, "UTF-8"),
        ({"env": {"A B": "c"}}, "environment variable"),
        ({"additional_parameters": (("a b", "c"),)}, "sbatch option"),
        ({"additional_parameters": (("job-name", "c"),)}, "conflicts with"),
        ({"additional_parameters": (("ntasks_per_node", "2"),)}, "conflicts with"),
        ({"additional_parameters": (("no_kill", True),)}, "conflicts with"),
    ],
)
def test_what_cannot_be_written_is_refused(
    values: dict[str, Any], word: str, plan_of_one_job: PlanMaker
) -> None:
    """What Slurm could not read, or would read otherwise, is an error that says so."""
    with pytest.raises(TemplateError, match=word) as caught:
        render_one(plan_of_one_job(**{"folder": FOLDER, **values}))
    assert caught.value.exit_code == 2


def test_auto_resume_job_s_script_is_the_golden_text(plan_of_one_job: PlanMaker) -> None:
    """It prepares the node as the launch's jobs do, and runs another command."""
    plan = plan_of_one_job(FOLDER, modules=["cuda/12.4"], setup=["source ~/venv/bin/activate"])
    like = plan.jobs[0].resources
    job = build_auto_resume_job(plan.id, index=1, like=like, cluster=plan.cluster, after=["7_0", "9"])
    text = render_batch_script(plan, job, [SHIPPED])
    golden = GOLDEN / "auto_resume.sbatch"
    if os.environ.get(UPDATE):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_satellite_s_script_is_the_golden_text(plan_of_one_job: PlanMaker) -> None:
    """It prepares its nodes as the run's job does, holds no secret, and joins the run."""
    plan = plan_of_one_job(FOLDER, modules=["cuda/12.4"], nodes=4, gpus_per_node=8)
    order = SatelliteOrder(replicas=1, nodes=2, taken=("n1", "n2", "n3", "n4"))
    job = build_satellite_job(plan.id, 0, index=1, like=plan.jobs[0], order=order)
    text = render_batch_script(plan, job, [SHIPPED])
    golden = GOLDEN / "satellite.sbatch"
    if os.environ.get(UPDATE):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_auto_resume_job_s_script_keeps_the_user_s_own_preparation(
    plan_of_one_job: PlanMaker, tmp_path: Path
) -> None:
    """What a template of the user's adds for the site's jobs, the auto-resume job has too."""
    own = '{% extends "hpckit/job.sbatch.j2" %}{% block modules %}# ours\n{% endblock %}\n'
    (tmp_path / "own.j2").write_text(own)
    plan = plan_of_one_job(FOLDER, template="own.j2")
    like = plan.jobs[0].resources
    job = build_auto_resume_job(plan.id, index=1, like=like, cluster=plan.cluster, after=["7"])
    text = render_batch_script(plan, job, [tmp_path, SHIPPED])
    assert "# ours\n" in text
    assert 'hpckit auto-resume "$folder" --job 1\n' in text
    assert "supervise" not in text


def test_cpus_by_gpu_take_the_place_of_cpus_by_task(plan_of_one_job: PlanMaker) -> None:
    """Sbatch refuses both; a site may take only the one for jobs with GPUs."""
    more = {"additional_parameters": (("cpus_per_gpu", "4"),)}
    asked = {"gpus_per_node": 2, "tasks_per_node": 2, "cpus_per_task": 4}
    text = render_one(plan_of_one_job(folder=FOLDER, **asked, **more))
    assert "--cpus-per-gpu=4" in text
    assert "--cpus-per-task" not in text
