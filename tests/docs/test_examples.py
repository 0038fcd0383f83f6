"""What the pages show is what is in docs/examples, and it runs."""

import copy
import json
import os
import pickle
import re
import shlex
import shutil
import sys
from pathlib import Path

import hydra.utils
import omegaconf
import pytest
from tiers import in_tiers
from waiting import run_to_end

from hpckit.runtime.environ import FORK_SERVER
from hpckit.runtime.rank.config import Config

pytestmark = pytest.mark.training

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("entry-point", "hydra-app", "command", "existing-ddp", "data", "sweeps", "stages", "parallel")


EXAMPLES = {"parallel": "own-model"}
"""Examples that have another name than their page."""


def example(page: str) -> Path:
    """Return the folder of a page's example."""
    return DOCS / "examples" / EXAMPLES.get(page, page)


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a guide in that language."""
    text = (DOCS / "guides" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """Return the command lines of a page's console blocks."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [shlex.split(line.removeprefix("$ ")) for line in lines]


def environ_of_user() -> dict[str, str]:
    """Return the environment of a user who has set nothing of hpckit's.

    What forks ranks is that of all tests: each launch would import torch for its own.
    """
    kept = {FORK_SERVER}
    names = [name for name in os.environ if not name.startswith("HPCKIT_") or name in kept]
    return {name: os.environ[name] for name in names}


def start(words: list[str], folder: Path) -> str:
    """Run one command line of a page in `folder` on the local executor; returns its output."""
    assert words[0] == "hpckit"
    local = ["cluster=local", "cluster.max_parallel=4"] if words[1] == "launch" else []
    place = words.index("--") if "--" in words else len(words)
    done = run_to_end(
        [sys.executable, "-m", *words[:place], *local, "--json", *words[place:]],
        cwd=folder,
        env=environ_of_user(),
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(page: str, tmp_path: Path) -> Path:
    """Return a copy of a page's example, outside any git checkout."""
    return Path(shutil.copytree(example(page), tmp_path / "project"))


@pytest.mark.parametrize(
    "page",
    [*(page for page in PAGES if page != "parallel"), "lightning", "trainer"],  # these need more to run
)
def test_page_shows_the_files_of_its_example(page: str) -> None:
    """Every file of an example stands in its page, to the letter."""
    files = [file for file in example(page).rglob("*") if file.suffix in {".py", ".yaml"}]
    assert files
    shown = blocks(page, "python") + blocks(page, "yaml")
    assert [file.name for file in files if file.read_text(encoding="utf-8") not in shown] == []


def test_guide_of_layouts_shows_the_end_of_its_example() -> None:
    """From the plan on, to the letter; the reference has a link to the whole file."""
    (shown,) = blocks("parallel", "python")
    assert shown.startswith("PLAN = ")
    file = example("parallel") / "train.py"
    assert file.read_text(encoding="utf-8").endswith(shown)
    link = f"(../{file.relative_to(DOCS).as_posix()})"
    assert link in (DOCS / "reference" / "parallel.md").read_text(encoding="utf-8")


def learns_and_reports_it(folder: Path) -> None:
    """Look at the result: the loss of the last step is recorded as the run's, and is small."""
    (run,) = json.loads(start(["hpckit", "status"], folder))["runs"]
    assert run["step"] == 49
    assert run["metrics"]["loss"] < 0.01


def sees_every_rank(folder: Path) -> None:
    """Look at the logs: a script that knows nothing of hpckit adds up what both ranks brought."""
    logs = json.loads(start(["hpckit", "logs", "--rank", "all"], folder))["logs"]
    texts = sorted(log["text"].strip() for log in logs)
    assert texts == ["rank 0 of 2: total 4.0", "rank 1 of 2: total 4.0"]


def layouts_agree(folder: Path) -> None:
    """Look at the results: all layouts end with the same loss, which has fallen."""
    runs = json.loads(start(["hpckit", "status"], folder))["runs"]
    losses = [run["metrics"]["loss"] for run in runs]
    assert len(losses) == 4
    assert max(losses) - min(losses) < 1e-4
    assert losses[0] < 2.0


PROMISES = {
    "entry-point": learns_and_reports_it,
    "existing-ddp": learns_and_reports_it,
    "command": sees_every_rank,
    "parallel": layouts_agree,
}
"""What holds after the first command line of a page, beside that its runs complete."""
OTHERWISE_TESTED = {"command", "data", "existing-ddp", "hydra-app", "parallel", "stages", "sweeps"}
"""Pages whose ways to run have tests of their own, or whose examples take long."""


@pytest.mark.parametrize("page", in_tiers(PAGES, set(PAGES) - OTHERWISE_TESTED))
def test_page_commands_run_as_shown(page: str, folder: Path) -> None:
    """Every command line works in a fresh copy of the example, and its runs do what they show."""
    lines = commands(page)
    assert [words[1] for words in lines].count("launch") >= 1
    for number, words in enumerate(lines):
        start(words, folder)
        states = {run["state"] for run in json.loads(start(["hpckit", "status"], folder))["runs"]}
        assert states == {"completed"}
        if number == 0 and page in PROMISES:
            PROMISES[page](folder)


def test_answers_of_the_page_run_as_shown(tmp_path: Path) -> None:
    """Every command of the questions and answers, one after the other, with the page's script."""
    (script,) = blocks("faq", "python")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    lines = commands("faq")
    said = {" ".join(words[1:3]): start(words, tmp_path) for words in lines}
    assert len(lines) >= 10
    found = json.loads(said["results --sort"])["runs"]
    assert [run["metrics"]["loss"] for run in found] == [0.0144, 0.1351]


def test_layout_that_does_not_fit_is_refused_as_the_page_shows(tmp_path: Path) -> None:
    """The command and what it says of the example's heads, line by line."""
    folder = Path(shutil.copytree(example("parallel"), tmp_path / "project"))
    (shown,) = [block for block in blocks("parallel", "text") if block.startswith("$ hpckit check")]
    typed, *said = shown.splitlines()
    done = run_to_end(
        [sys.executable, "-m", *shlex.split(typed.removeprefix("$ "))],
        cwd=folder,
        env=environ_of_user(),
        timeout=240,
    )
    assert done.returncode == 2
    printed = (done.stdout + done.stderr).splitlines()
    assert [line for line in said if line.rstrip() not in printed] == []


def test_fake_gpus_of_the_page_are_measured(tmp_path: Path) -> None:
    """The script and the commands of the page, as they stand but for a shorter run."""
    (tmp_path / "gpus.py").write_text(
        next(block for block in blocks("fake-gpu", "python") if "sys.argv" in block), encoding="utf-8"
    )
    (typed,) = blocks("fake-gpu", "bash")
    done = run_to_end(
        ["bash", "-ec", typed.replace("sleep 30", "sleep 5")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^GPUs: \d+ % busy, .* 1148 W$", done.stdout, re.MULTILINE)
    assert re.search(r"^energy: .* in the site's currency$", done.stdout, re.MULTILINE)


def test_page_reads_the_configuration_as_it_shows() -> None:
    """Every line that the page shows with `config` does what it says."""
    (shown,) = [block for block in blocks("entry-point", "python") if "config.get" in block]
    part = {"_target_": "collections.Counter", "lr": 1}
    config = Config(lr=0.1, blocks=[{"width": 8}], optimizer=part, model=part, resources={"nodes": 1})
    modules = {"copy": copy, "hydra": hydra, "json": json, "pickle": pickle}
    exec(shown, {"OmegaConf": omegaconf.OmegaConf, **modules}, {"config": config})  # noqa: S102  # our own page
