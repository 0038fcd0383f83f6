"""The two set-up commands and CI: what they run, what they refuse, what they say they left out.

The scripts are real; the programs they call are stand-ins that note how they were called.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import run_to_end, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = """#!/bin/bash
called="${0##*/} $*"
echo "$called" >> "$NOTES"
record() { [ -z "${HPCKIT_TEST_RECORD:-}" ] || echo "$1" >> "$HPCKIT_TEST_RECORD"; }
case "$called" in
  "python tests/second_try.py "*) exec "$PYTHON" "$@" ;;
  *"$FAILING"*)
    record '{"failed": "tests/a.py::test_a", "exact": '"$EXACT"', "reason": "late"}'
    record '{"status": 1, "stopped": "", "passed": 0, "closing": "1 failed"}'
    exit 1 ;;
  *"${HANGING:-nothing}"*) exec sleep 600 ;;
esac
record '{"status": 0, "stopped": "", "passed": 1, "closing": "1 passed"}'
"""
ISOLATED = """#!/bin/bash
echo "isolated $1 with HPCKIT_TEST_SLURM=$HPCKIT_TEST_SLURM" >> "$NOTES"
exec "$@"
"""
GATES = ["ruff check .", "ruff format --check .", "mypy ", "lint-imports ", "mkdocs build --strict --quiet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A checkout whose virtual environment and sandbox are stand-ins."""

    folder: Path
    notes: Path

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run one of its scripts; FAILING is part of a call that fails, by an exact test of it."""
        settings = {"NOTES": str(self.notes), "FAILING": "nothing", "EXACT": "true", "PYTHON": sys.executable}
        return run_to_end(
            list(words), cwd=self.folder, env={**os.environ, **settings, **environ}, timeout=250
        )

    def calls(self, *programs: str) -> list[str]:
        """Return how these stand-ins were called, in order; all of them without a name."""
        lines = self.notes.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if not programs or line.split()[0] in programs]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Make a checkout with the scripts and stand-ins for all they call."""
    ours = ("scripts/test", "scripts/demo", "scripts/venv", ".ci/run")
    for name in (*ours, "tests/second_try.py", "tests/FLAKY.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "hpckit").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "hpckit/version.py"):
        (tmp_path / name).touch()
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    names = ("python", "pip", "ruff", "mypy", "lint-imports", "mkdocs", "pytest")
    for path in (*(programs / name for name in names), tmp_path / "scripts" / "slurm-sandbox"):
        path.write_text(PROGRAM, encoding="utf-8")
        path.chmod(0o755)
    isolated = tmp_path / "scripts" / "isolated"
    isolated.write_text(ISOLATED, encoding="utf-8")
    isolated.chmod(0o755)
    return Checkout(folder=tmp_path, notes=tmp_path / "notes")


WORKERS = min(16, 3 * len(os.sched_getaffinity(0)) + 1)
OTHER_TESTS = (
    f"pytest -n {WORKERS} --dist loadfile --no-loadscope-reorder -m not slurm and not thorough tests"
)
SLURM_TESTS = "pytest --maxfail 3 -m slurm"
USUAL = f"{SLURM_TESTS} and (main or not faults) and not release and not thorough tests/integration"
ON_EACH = f"{SLURM_TESTS} and release and not thorough tests/integration"
ALL_TESTS = {USUAL, ON_EACH, OTHER_TESTS}
root_with_apt = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("apt-get") is None, reason="needs root and apt-get"
)


@pytest.mark.parametrize(("chosen", "folder"), [("", "outputs"), ("/data/runs", "/data/runs")])
def test_demo_trains_on_this_machine_and_shows_the_result(
    checkout: Checkout, chosen: str, folder: str
) -> None:
    """Whatever the machine has, the demo takes the local executor, waits, and shows a table."""
    assert checkout.run("scripts/demo", HPCKIT_OUTPUTS=chosen).returncode == 0
    assert checkout.calls()[-3:] == [
        "python -m hpckit launch --wait --rerun cluster=local experiment=digits",
        "python -m hpckit results",
        f"python -m hpckit report -o {folder}/digits.html",
    ]


def test_demo_installs_once(checkout: Checkout) -> None:
    """A second call finds everything installed and asks pip for nothing."""
    for _ in range(2):
        assert checkout.run("scripts/demo").returncode == 0
    installs = [call for call in checkout.calls() if "pip install" in call]
    words = "-q --no-compile -c constraints.txt -e .[examples,report]"
    assert installs == [f"python -m pip install {words}"]


def test_demo_fails_where_the_run_fails(checkout: Checkout) -> None:
    """A failed launch is the demo's own exit code, and no result is shown."""
    assert checkout.run("scripts/demo", FAILING="hpckit launch").returncode == 1
    assert "python -m hpckit results" not in checkout.calls()


def test_test_fast_runs_every_gate_and_says_what_it_left_out(checkout: Checkout) -> None:
    """--fast runs linters, types, layers and quick tests, and names what it did not run."""
    done = checkout.run("scripts/test", "--fast")
    assert done.returncode == 0, done.stderr
    tests = "not slurm and not training and not slow and not whole and not thorough"
    calls = [call for call in checkout.calls() if not call.startswith("python ")]
    assert sorted(calls[-6:]) == sorted([*GATES, f"pytest -n {os.cpu_count()} --dist loadfile -m {tests}"])
    assert "left out: the tests that train" in done.stdout


@pytest.mark.parametrize("gate", ["ruff check", "ruff format", "mypy", "lint-imports", "mkdocs", "pytest"])
def test_test_fails_with_any_gate(checkout: Checkout, gate: str) -> None:
    """One gate that fails fails the whole."""
    assert checkout.run("scripts/test", "--fast", FAILING=gate).returncode == 1


@root_with_apt
def test_test_runs_slurm_tests_on_both_releases(checkout: Checkout) -> None:
    """What depends on the release on 24.11, all else on 22.05, each in its own sandbox."""
    done = checkout.run("scripts/test")
    assert done.returncode == 0, done.stderr
    assert {
        "slurm-sandbox install --release 22.05",
        "slurm-sandbox install --release 24.11",
        "isolated pytest with HPCKIT_TEST_SLURM=22.05",
        "isolated pytest with HPCKIT_TEST_SLURM=24.11",
        *ALL_TESTS,
    } <= set(checkout.calls())


@root_with_apt
@pytest.mark.parametrize("failing", sorted(ALL_TESTS))
def test_test_shows_what_slurm_tests_said_although_others_failed(checkout: Checkout, failing: str) -> None:
    """All run at once: the failure of one hides nothing of the others, and fails the whole."""
    done = checkout.run("scripts/test", FAILING=failing)
    assert done.returncode == 1
    assert set(checkout.calls()) >= ALL_TESTS
    assert "tests on Slurm 22.05" in done.stdout
    assert "tests on Slurm 24.11" in done.stdout


@root_with_apt
@pytest.mark.parametrize(("failing", "release"), [(USUAL, "22.05"), (ON_EACH, "24.11"), (OTHER_TESTS, None)])
def test_test_gives_a_second_try_as_its_tests_were_run(
    checkout: Checkout, failing: str, release: str | None
) -> None:
    """Alone and at the end, on the same release; then the whole passes, and the name is said."""
    done = checkout.run("scripts/test", FAILING=failing, EXACT="false")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flaky: tests/a.py::test_a\n" in done.stdout
    isolated = [f"isolated pytest with HPCKIT_TEST_SLURM={release}"] if release else []
    again = "pytest -m not exact tests/a.py::test_a"
    assert checkout.calls()[-1 - len(isolated) :] == [*isolated, again]


@pytest.mark.parametrize("gate", ["ruff format", "mypy"])
def test_test_tries_nothing_again_where_more_than_a_test_failed(checkout: Checkout, gate: str) -> None:
    """A gate that fails fails the whole, and no time goes into a test."""
    done = checkout.run("scripts/test", "--fast", FAILING=gate, EXACT="false")
    assert done.returncode == 1
    assert not [call for call in checkout.calls() if "second_try" in call or "not exact" in call]


@root_with_apt
def test_test_runs_all_combinations_if_that_is_asked_for(checkout: Checkout) -> None:
    """--thorough runs what is left out else, with the whole fault matrix, and it is said."""
    assert "(--thorough)" in checkout.run("scripts/test").stdout
    done = checkout.run("scripts/test", "--thorough")
    assert "(--thorough)" not in done.stdout
    calls = checkout.calls("pytest")
    assert f"{SLURM_TESTS} tests/integration" in calls
    assert f"{SLURM_TESTS} and (main or release) tests/integration" in calls
    assert OTHER_TESTS.replace(" and not thorough", "") in calls


@root_with_apt
def test_test_leaves_the_sandbox_of_this_machine_alone(checkout: Checkout) -> None:
    """A sandbox that somebody uses is neither used nor taken down."""
    assert checkout.run("scripts/test").returncode == 0
    assert {call.split()[1] for call in checkout.calls("slurm-sandbox")} == {"install"}


@root_with_apt
def test_test_all_releases_tries_the_moving_one_last(checkout: Checkout) -> None:
    """26.05 comes after those that gate; with hydra-core 1.4 all tests of compositions run."""
    checkout.run("scripts/test", "--all-releases")
    assert "pytest -n 1 -m not slurm and not thorough tests/config tests/hydra_app" in checkout.calls()
    calls = [call for call in checkout.calls("isolated") if "22.05" not in call]
    assert calls == [f"isolated pytest with HPCKIT_TEST_SLURM={name}" for name in ("24.11", "26.05")]


@root_with_apt
def test_ci_runs_both_commands_of_the_readme(checkout: Checkout) -> None:
    """CI trains the demo first and runs the Slurm tests."""
    assert checkout.run(".ci/run").returncode == 0
    calls = checkout.calls()
    assert calls.index("python -m hpckit results") < calls.index(USUAL)


@root_with_apt
@pytest.mark.parametrize("hanging", [USUAL, OTHER_TESTS], ids=["slurm", "other"])
def test_ci_ends_by_itself_and_says_so_when_a_test_hangs(checkout: Checkout, hanging: str) -> None:
    """A suite that hangs is interrupted at CI's own limit."""
    done = checkout.run(".ci/run", HANGING=hanging, HPCKIT_CI_LIMIT_MIN="0.05")
    assert done.returncode == 1
    assert "CI took longer than 0.05 minutes" in done.stderr


def test_test_campaign_runs_nothing_else_and_can_be_repeated(checkout: Checkout) -> None:
    """--campaign N runs the random faults alone, and says by which seed they come again."""
    done = checkout.run("scripts/test", "--campaign", "5", HPCKIT_CAMPAIGN_SEED="7")
    assert done.returncode == 0, done.stderr
    assert checkout.calls("pytest", "ruff") == ["pytest -v --timeout 900 tests/integration/test_campaign.py"]
    assert "campaign: 5 runs under random faults, HPCKIT_CAMPAIGN_SEED=7" in done.stdout


@pytest.mark.parametrize("words", [("--nonsense",), ("--campaign",), ("--campaign", "many")])
def test_test_refuses_words_it_does_not_know(checkout: Checkout, words: tuple[str, ...]) -> None:
    """Words that mean nothing are a usage message and exit code 2, before anything is done."""
    done = checkout.run("scripts/test", *words)
    assert done.returncode == 2
    assert "usage: scripts/test" in done.stderr
    assert not checkout.notes.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces")
def test_isolated_shares_no_network_and_no_run_folder_and_leaves_nothing(tmp_path: Path) -> None:
    """Two sandboxes never meet, and what a command started ends with it."""
    inside = f"""
        ls /sys/class/net > {tmp_path}/links; ls /run > {tmp_path}/run; touch /run/hpckit-test
        echo 127.0.0.9 hpckit-test >> /etc/hosts
        sleep 987 & echo $! ; readlink /proc/$!/ns/pid
        exit 7
    """
    done = run_to_end([ROOT / "scripts" / "isolated", "sh", "-c", inside])
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "links").read_text().split() == ["lo"]
    assert set((tmp_path / "run").read_text().split()) <= {"hosts", "resolv.conf", "mount"}
    assert not Path("/run/hpckit-test").exists()
    assert "hpckit-test" not in Path("/etc/hosts").read_text()
    until(lambda: not _lives_in(done.stdout.split()[1]))


def _lives_in(namespace: str) -> bool:
    for link in Path("/proc").glob("[0-9]*/ns/pid"):
        try:
            if str(link.readlink()) == namespace:
                return True
        except OSError:
            continue
    return False
