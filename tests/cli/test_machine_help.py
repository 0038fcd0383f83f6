"""`--help --json`: what a program or an agent is told of each verb is so."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_world import Desk, Said, Shell, Writer
from json_schemas import documents_in, read_schemas
from report_launches import swept_launch, troubled_launch
from waiting import run_to_end

from hpckit.cli.machine_help import EFFECTS, EXIT_CODES, VERB_EFFECTS
from hpckit.cli.main import VERBS, build_verb_parser
from hpckit.errors import HpckitError, UsageError

HARMLESS = {"reads", "asks_slurm", "runs_code", "notifies", "waits"}
"""Effects that leave every file as it is."""


def told(shell: Shell, *words: str) -> Any:
    """Return what hpckit says as JSON."""
    said = shell(*words)
    assert (said.code, said.err) == (0, "")
    return json.loads(said.out)


def test_machine_help_tells_every_verb_with_its_effects(shell: Shell) -> None:
    """Each verb, option and effect is there and explained; a new verb needs its effects in the table."""
    found = told(shell, "--help", "--json")
    assert found == told(shell, "help", "--json")
    assert [verb["verb"] for verb in found["verbs"]] == [*VERBS]
    assert set(VERB_EFFECTS) == set(VERBS)
    for verb in found["verbs"]:
        options = {name for option in verb["options"] for name in option["names"]}
        parser = build_verb_parser(verb["verb"])
        expected = {name for action in parser._actions for name in action.option_strings}  # noqa: SLF001
        assert options == expected - {"-h", "--help"}
        assert all(part["meaning"] for part in (*verb["options"], *verb["arguments"]))
        added = [effect for effects in verb["effects_with"].values() for effect in effects]
        assert {*verb["effects"], *added} <= set(EFFECTS)
        assert {*verb["effects_with"], *verb["only_reads_with"]} <= options
        assert verb["usage"].startswith(f"hpckit {verb['verb']}")
    codes = {kind.exit_code for kind in _errors(HpckitError)} | {0, 130, 141}
    assert {int(code) for code in found["exit_codes"]} == codes == set(EXIT_CODES)
    assert "hpckit --help --json" in Path(found["guide"]).read_text()


def _errors(kind: type[HpckitError]) -> list[type[HpckitError]]:
    return [kind, *(found for inner in kind.__subclasses__() for found in _errors(inner))]


def test_machine_help_of_a_verb_has_options_and_schema(shell: Shell) -> None:
    """Types, choices, defaults and what takes a value; and the schema of what the verb prints."""
    found = told(shell, "plan", "--help", "--json")
    options = {option["names"][-1]: option for option in found["options"]}
    assert (options["--gpus"]["value"], options["--search"]["type"]) == ("N", "flag")
    assert options["--optimizer"]["choices"] == ["adam", "adam8bit", "sgd"]
    assert options["--parallel"]["several"]
    limit = told(shell, "help", "results", "--json")["options"]
    assert [(one["type"], one["default"]) for one in limit if one["names"] == ["--limit"]] == [("integer", 0)]
    watch = {one["names"][0]: one["takes_value"] for one in told(shell, "status", "-h", "--json")["options"]}
    assert (watch["--watch"], watch["--fresh"], watch["--sort"]) == ("optional", False, True)
    assert "nodes" in str(told(shell, "sandbox", "--help", "--json")["actions"]["up"])
    assert told(shell, "top", "--help", "--json")["output_schema"] is None
    unknown = shell("launhc", "--help", "--json")
    assert (unknown.code, unknown.out) == (2, "")
    assert "hpckit launch" in unknown.err


@pytest.mark.parametrize("verb", VERBS)
def test_schema_is_there_for_each_verb_that_prints_json(verb: str) -> None:
    """As JSON Schema says it should be, and only where the verb has `--json`."""
    has = any("--json" in action.option_strings for action in build_verb_parser(verb)._actions)  # noqa: SLF001
    assert (has or verb == "sandbox") is (verb in read_schemas())
    for schema in read_schemas().get(verb, {}).values():
        jsonschema.Draft202012Validator.check_schema(schema)


LOOKS = (
    *(("ls",), ("status", "llm"), ("status", "sweep", "--failed"), ("status", "empty"), ("show", "llm")),
    *(("show", "sweep"), ("show", "llm", "--config"), ("diff", "sweep.0", "sweep.7"), ("logs", "llm")),
    *(("logs", "llm", "--tail", "2"), ("results", "sweep"), ("results", "sweep", "--over", "seed")),
    *(("results", "sweep", "--state", "running"), ("report", "llm"), ("nodes",), ("doctor",)),
    *(("checkpoint", "ls", "llm"), ("clean", "--dry-run"), ("rm", "sweep", "--dry-run")),
    ("cancel", "sweep", "--dry-run"),
)
LOCAL = ("cluster=local", "experiment=command", "command=true", "code.snapshot=false")
STARTS = (
    *(
        ("launch", "--dry-run", *LOCAL, "seed=3"),
        ("check", *LOCAL),
        ("plan", "--gpu=H100-SXM", "--gpus=8", "--power"),
    ),
    *(("resume", "--dry-run"), ("rerun", "--dry-run"), ("launch", "--cfg", "seed", *LOCAL)),
)


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return what lies below a folder, but for the caches that hpckit names so."""
    files = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {str(path): (stat.st_mtime_ns, path.read_bytes()) for path, stat in files.items()}


def changed_by(say: Callable[..., Said], calls: Sequence[Sequence[str]], folder: Path) -> set[str]:
    """Return the files that these calls change; what they print has to be valid by the schemas."""
    before = tree(folder)
    for words in calls:
        effects = set(VERB_EFFECTS[words[0]].partition(";")[0].split())
        assert {"--dry-run", "--cfg"} & {*words} or effects <= HARMLESS or words[0] == "report", words
        said = say(*words, *(() if "--cfg" in words else ("--json",)))
        assert said.code == 0, said.err
        for form, document in () if "--cfg" in words else documents_in(words[0], words, said.out):
            jsonschema.Draft202012Validator(read_schemas()[words[0]][form]).validate(document)
    after = tree(folder)
    return {name for name in after.keys() | before.keys() if after.get(name) != before.get(name)}


def test_verbs_that_only_read_change_no_file(desk: Desk, shell: Shell, writer: type[Writer]) -> None:
    """Verbs without an effect on files leave all as it is, and so do others with what only reads.

    What they print with `--json` is valid by the schema, as an independent program reads it.
    """
    troubled_launch(desk)
    swept_launch(desk, 8, steps=20)
    writer(launch=desk.freeze("empty", minute=1)).start()
    assert changed_by(desk.say, LOOKS, desk.folder.parent) == set()
    shell("render", *LOCAL)
    shell.environ["XDG_CACHE_HOME"] = str(shell.cwd.parent / "cache")
    assert changed_by(shell, STARTS, shell.cwd) == set()


@pytest.mark.parametrize("verb", VERBS)
def test_options_of_which_a_call_may_have_one_are_refused_together(shell: Shell, verb: str) -> None:
    """Whatever `exclusive` names: neither of the two is ignored."""
    found = told(shell, verb, "--help", "--json")
    wants = {names: one["takes_value"] is True for one in found["options"] for names in one["names"]}
    for one, other in (pair for group in found["exclusive"] for pair in itertools.combinations(group, 2)):
        said = shell(verb, *(word for name in (one, other) for word in (name, "x")[: 1 + wants[name]]))
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("hpckit: error: cannot combine ")
        assert {one, other} <= {*said.err.split()}


@pytest.mark.parametrize(
    "words",
    [
        *(("launch", "--cfg", "--json"), ("check", "--info", "--json"), ("launch", "--rerun", "--any-code")),
        *(
            ("status", "--watch", "--goodput"),
            ("status", "--watch", "5", "--fresh"),
            ("results", "--goodput"),
        ),
        *(("results", "--csv", "--goodput", "--over", "seed"), ("report", "--json", "--refresh", "5")),
        ("chaos", "kill", "--seed", "3"),
    ],
)
def test_option_that_would_be_ignored_is_refused(desk: Desk, words: tuple[str, ...]) -> None:
    """Beside another one, or without the one that it belongs to."""
    desk.freeze()
    with pytest.raises(UsageError, match=r"cannot combine|needs --csv|is for HTML|only for random faults"):
        desk.say(*words)


def test_guide_leads_only_where_a_reader_of_the_package_can_go(shell: Shell) -> None:
    """Pages beside it are not shipped, so it names none by a link."""
    assert "](" not in Path(told(shell, "--help", "--json")["guide"]).read_text().replace("](http", "")


def test_sandbox_answers_as_other_verbs_do() -> None:
    """What is down is an answer, with a code of its own; a wrong word is one error."""
    words = [sys.executable, "-m", "hpckit", "sandbox", "status"]
    seen = run_to_end([*words, "--json"])
    assert seen.returncode == (0 if json.loads(seen.stdout)["state"] == "up" else 3)
    wrong = run_to_end([*words, "--jsn"])
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("hpckit: error: ")


def test_errors_leave_standard_output_empty(shell: Shell) -> None:
    """A program never has to tell an error from a document: one has the code, the other the JSON."""
    refused = ("launch", "--dry-run", *LOCAL, "cluster.python=/no/python")
    for words in (("status", "none"), ("results",), ("launch", "no=such"), ("resume", "none"), refused):
        said = shell(*words, "--json")
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("hpckit: error: ")
    assert json.loads(shell("ls", "--json").out) == {"launches": []}


def test_loop_of_the_guide_runs(shell: Shell) -> None:
    """Check, launch, watch and results, as the guide has them, of a run that is over soon."""
    text = Path(told(shell, "--help", "--json")["guide"]).read_text().partition("## The loop")[2]
    shown = text.partition("```console\n")[2].partition("```")[0].replace(" epochs=1", "")
    lines = shown.replace("experiment=digits", "experiment=command command=true").splitlines()
    documents = {}
    for line in lines:
        words = line.removeprefix("$ hpckit ").split()
        said = shell(*words)
        assert said.code == 0, said.err
        documents[words[0]] = json.loads(said.out)
    assert documents["check"]["ok"]
    (run,) = documents["results"]["runs"]
    assert run["run"] == documents["launch"]["runs"][0]["run"]
    assert documents["watch"]["runs"][0]["state"] == run["state"] == "completed"
