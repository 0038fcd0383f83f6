"""The two set-up commands and CI: what they run, what they refuse, what they say they left out.

The scripts are real; the programs they call are stand-ins that note how they were called.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """#!/bin/bash
echo "${0##*/} $*" >> "$NOTES"
for word; do
  case $word in --junitxml=*) echo "<testsuite skipped=\\"$SKIPPED\\"/>" > "${word#*=}" ;; esac
done
case "${0##*/} $*" in
  "python -c "*import\\ json*) echo "$AS_FOUND" ;;
  *"$FAILING"*) exit 1 ;;
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A checkout whose virtual environment holds stand-ins."""

    folder: Path
    notes: Path

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run one of its scripts; FAILING names a call that fails, SKIPPED how many tests skip."""
        settings = {"NOTES": str(self.notes), "FAILING": "nothing", "SKIPPED": "0"}
        settings |= {"AS_FOUND": "down", **environ}
        return subprocess.run(
            list(words),
            cwd=self.folder,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self) -> list[str]:
        """Return how the stand-ins were called, in order."""
        return self.notes.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Make a checkout with the scripts and stand-ins for all they call."""
    for name in ("scripts/test", "scripts/demo", "scripts/venv.sh", ".ci/run"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / ".pytest_cache").mkdir()
    for name in ("python", "ruff", "mypy", "lint-imports", "pytest"):
        (programs / name).write_text(PROGRAM, encoding="utf-8")
        (programs / name).chmod(0o755)
    return Checkout(folder=tmp_path, notes=tmp_path / "notes")


root_with_apt = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("apt-get") is None, reason="needs root and apt-get"
)


def test_test_fast_runs_every_gate_and_says_what_it_left_out(checkout: Checkout) -> None:
    """--fast runs the linters, the types, the layers and the tests, and names the Slurm tests."""
    done = checkout.run("scripts/test", "--fast")
    assert done.returncode == 0, done.stderr
    assert checkout.calls()[-5:] == [
        "ruff check .",
        "ruff format --check .",
        "mypy ",
        "lint-imports ",
        "pytest -q -m not slurm",
    ]
    assert "left out: the tests marked slurm" in done.stdout


@pytest.mark.parametrize("gate", ["ruff check", "ruff format", "mypy", "lint-imports", "pytest"])
def test_test_fails_with_any_gate(checkout: Checkout, gate: str) -> None:
    """One gate that fails fails the whole, and nothing claims to have passed."""
    done = checkout.run("scripts/test", "--fast", FAILING=gate)
    assert done.returncode != 0
    assert "All gates passed" not in done.stdout


@root_with_apt
def test_test_runs_slurm_tests_on_both_releases_and_tidies_up(checkout: Checkout) -> None:
    """All Slurm tests on 22.05, the main ones on 24.11, and the sandbox is down afterwards."""
    done = checkout.run("scripts/test")
    assert done.returncode == 0, done.stderr
    calls = [call.split(" --junitxml")[0] for call in checkout.calls()]
    assert calls[-5:] == [
        "python scripts/slurm-sandbox up --release 22.05",
        "pytest -q -m slurm",
        "python scripts/slurm-sandbox up --release 24.11",
        "pytest -q -m slurm and main",
        "python scripts/slurm-sandbox down",
    ]


@root_with_apt
def test_test_leaves_a_sandbox_that_was_up_as_it_was(checkout: Checkout) -> None:
    """A sandbox that somebody uses is brought back with its own options."""
    checkout.run("scripts/test", AS_FOUND="up --nodes=6 --release=24.11")
    assert checkout.calls()[-1] == "python scripts/slurm-sandbox up --nodes=6 --release=24.11"


@root_with_apt
def test_test_tidies_up_after_a_failure(checkout: Checkout) -> None:
    """Slurm tests that fail fail the whole, and the sandbox still goes down."""
    done = checkout.run("scripts/test", FAILING="-m slurm --junitxml")
    assert done.returncode != 0
    assert checkout.calls()[-1] == "python scripts/slurm-sandbox down"


@root_with_apt
def test_test_all_releases_reports_the_moving_one_without_failing(checkout: Checkout) -> None:
    """26.05 is tried, its failure is told, and the exit code is that of the others."""
    done = checkout.run("scripts/test", "--all-releases", FAILING="up --release 26.05")
    assert done.returncode == 0
    assert "Slurm 26.05: FAILED" in done.stdout


@root_with_apt
def test_ci_runs_the_demo_and_insists_on_the_slurm_tests(checkout: Checkout) -> None:
    """CI runs both commands of the README, and a skipped Slurm test fails it."""
    assert checkout.run(".ci/run").returncode == 0
    assert "python -m hpckit launch cluster=local --wait" in checkout.calls()
    done = checkout.run(".ci/run", SKIPPED="3")
    assert done.returncode != 0
    assert "were skipped on Slurm 22.05" in done.stderr


def test_scripts_refuse_words_they_do_not_know(checkout: Checkout) -> None:
    """A word nobody knows is a usage message and exit code 2, before anything is done."""
    for name in ("scripts/test", "scripts/demo"):
        done = checkout.run(name, "--nonsense")
        assert done.returncode == 2
        assert name in done.stderr
    assert not checkout.notes.exists()


def test_test_cannot_be_fast_and_insist_on_slurm(checkout: Checkout) -> None:
    """The two options contradict each other, and the message says so."""
    done = checkout.run("scripts/test", "--fast", "--require-slurm")
    assert done.returncode == 1
    assert "give one of them" in done.stderr
