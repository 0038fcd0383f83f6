"""Promises of `hpckit results`."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from cli_world import START
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from hpckit.errors import ConfigError, UsageError
from hpckit.model import events
from hpckit.model.settings import Observe
from hpckit.record.launches import load_launch
from hpckit.report.results import ACCOUNT_COLUMNS
from hpckit.report.selection import parse_override_value

SWEEP = [
    ("experiment=digits", "+lr=0.1", "seed=1"),
    ("experiment=digits", "+lr=0.02", "seed=1"),
    ("experiment=digits", "+lr=0.003", "seed=1"),
]


@pytest.fixture
def swept(desk: Any, writer: Any) -> Any:
    """Return a desk with a sweep of three: two completed, one still running."""
    launch = desk.freeze(sweep=SWEEP)
    for index, accuracy in ((0, 0.5), (1, 0.9)):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.metrics(10, loss=1.0)
        attempt.metrics(20, loss=1.0 - accuracy, accuracy=accuracy)
        attempt.complete()
    writer(launch=launch, index=2).start()
    return desk


def test_results_show_what_differs_beside_what_came_out(swept: Any) -> None:
    """Columns are the overrides that differ, the state, the last metrics, step and time."""
    lines = swept.say("results").out.splitlines()
    assert lines[0].split() == [*("index", "lr", "state", "loss", "accuracy", "steps", "time", "goodput")]
    assert lines[1].split()[:7] == ["0", "0.1", "completed", "0.5", "0.5", "21", "2:00"]
    assert lines[1].endswith("  99.2 %")
    assert lines[3].split()[:3] == ["2", "0.003", "running"]


def test_results_csv_is_read_back_by_any_program(swept: Any) -> None:
    """--csv has a header and full numbers, with nothing where there is nothing."""
    said = swept.say("results", "--csv", "--goodput").out
    rows = list(csv.DictReader(io.StringIO(said)))
    account = {name: rows[1].pop(name) for name in ACCOUNT_COLUMNS}
    assert (account["goodput"], account["failures"]) == (str(119 / 120), "0")
    assert rows[1] == {
        "index": "1",
        "lr": "0.02",
        "state": "completed",
        "loss": "0.09999999999999998",
        "accuracy": "0.9",
        "step": "20",
        "time": "120.0",
    }
    assert rows[2]["accuracy"] == ""
    plain = swept.say("results", "--csv").out.splitlines()
    assert plain[0] == "index,lr,state,loss,accuracy,step,time"


def test_results_json_has_the_documented_fields(swept: Any) -> None:
    """Programs find the fields that docs/reference/cli/results.md names."""
    document = json.loads(swept.say("results", "--json").out)
    assert list(document) == [
        *("launch", "overrides", "metrics", "runs", "total", "matching", "launches", "best"),
        "elsewhere",
    ]
    assert (document["overrides"], document["metrics"]) == (["lr"], ["loss", "accuracy"])
    first = document["runs"][0]
    assert list(first) == [
        *("run", "index", "overrides", "state", "step", "wall_s", "metrics", "goodput"),
        *("launch", "attempt", "stage", "blocked", "reason", "cause", "warnings"),
    ]
    assert (first["overrides"], first["wall_s"]) == ({"lr": 0.1}, 120.0)


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (("--sort", "lr"), [2, 1, 0]),
        (("--sort", "accuracy"), [0, 1, 2]),
        (("--sort", "accuracy", "--descending"), [1, 0, 2]),
        (("--sort", "index", "--descending"), [2, 1, 0]),
        (("--sort", "-accuracy"), [1, 0, 2]),
        (("--sort=-index",), [2, 1, 0]),
        (("--sort", "productive_s", "--descending"), [0, 1, 2]),
        ((), [0, 1, 2]),
    ],
)
def test_results_sort_by_any_column(swept: Any, words: tuple[str, ...], order: list[int]) -> None:
    """Numbers sort by size, and runs without a value come last either way."""
    runs = json.loads(swept.say("results", "--json", *words).out)["runs"]
    assert [run["index"] for run in runs] == order


def test_results_refuse_to_sort_by_what_is_no_column(swept: Any) -> None:
    """A column that is none is an error that names those there are."""
    with pytest.raises(UsageError, match="index, state, cause, step, time, lr, loss, accuracy"):
        swept.say("results", "--sort", "speed")


def test_results_of_a_single_run_need_no_columns_of_overrides(desk: Any) -> None:
    """Where nothing differs, no override is shown."""
    desk.freeze(sweep=[("seed=1",)])
    head, row = desk.say("results", "--csv").out.splitlines()
    assert head == "index,state,step,time"
    assert row == "0,pending,,"


def test_results_have_no_columns_of_how_runs_were_watched(desk: Any) -> None:
    """Several launches may differ in who was told, and in what was measured: no result does."""
    watched = ["lr=1", "+tracker.project=x", "notify.events=[failed]", "observe=deep", "name=a"]
    desk.freeze(sweep=[watched, ["lr=2"]])
    found = json.loads(desk.say("results", "--json").out)
    assert [one["overrides"] for one in found["runs"]] == [{"lr": 1}, {"lr": 2}]


def test_results_draw_a_table_on_a_terminal(swept: Any) -> None:
    """A terminal gets the same columns, drawn."""
    assert "accuracy" in swept.say("results", terminal=True).out


def test_results_of_some_runs_keep_the_columns_of_the_sweep(swept: Any) -> None:
    """A filter leaves runs out, not the column of what they were chosen by."""
    lines = swept.say("results", "--override", "lr=0.02").out.splitlines()
    assert "lr" in lines[0].split()
    assert [line.split()[:2] for line in lines[1:]] == [["1", "0.02"]]


def test_results_say_how_many_a_limit_leaves_out(swept: Any) -> None:
    """The best N by a metric, and how many there are besides."""
    said = swept.say("results", "--sort", "-accuracy", "--limit", "1", "--json")
    document = json.loads(said.out)
    assert [run["index"] for run in document["runs"]] == [1]
    assert (document["total"], document["matching"]) == (3, 3)
    assert "2 more not shown" in said.err


def test_results_sort_by_a_metric_among_runs_in_the_same_state(desk: Any, writer: Any) -> None:
    """The first is the best that completed, not one that failed early; other columns mix states."""
    launch = desk.freeze(sweep=[(f"+lr=0.{index}",) for index in range(7)])
    for index, loss in enumerate((0.1, 0.5, 0.2, 0.4, None, 0.3)):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        if loss is not None:
            attempt.metrics(index, loss=loss)
        if index == 0:
            attempt.fail()
        elif index % 2 or index == 4:
            attempt.complete()
    desk.tell(launch, events.CancelRequested(at=launch.created_at, runs=(6,)))
    for column, order in {
        "loss": [5, 3, 1, 2, 0, 4, 6],
        "-loss": [1, 3, 5, 2, 0, 4, 6],
        "lr": [0, 1, 2, 3, 4, 5, 6],
        "-lr": [6, 5, 4, 3, 2, 1, 0],
    }.items():
        assert [run["index"] for run in read(desk, f"--sort={column}")["runs"]] == order
        table = csv.DictReader(io.StringIO(desk.say("results", "--csv", f"--sort={column}").out))
        assert [int(row["index"]) for row in table] == order


def test_results_have_causes_once_a_run_failed(swept: Any, writer: Any) -> None:
    """In the table, CSV and JSON; without failed runs there is no such column."""
    assert "cause" not in swept.say("results", "--csv").out
    launch = load_launch(swept.folder / read(swept)["launch"])
    writer(launch=launch, index=2).fail()
    assert ["2", "0.003", "failed", "exception"] in [
        line.split()[:4] for line in swept.say("results").out.splitlines()
    ]
    rows = list(csv.DictReader(io.StringIO(swept.say("results", "--csv").out)))
    assert [row["cause"] for row in rows] == ["", "", "exception"]
    assert [run["cause"] for run in read(swept)["runs"]] == [None, None, "exception"]
    first = read(swept, "--sort", "cause")["runs"][0]
    assert first["index"] == 2


def read(desk: Any, *words: str) -> dict[str, Any]:
    """Return what `results --json` says."""
    document: dict[str, Any] = json.loads(desk.say("results", *words, "--json").out)
    return document


@pytest.fixture
def seeds(desk: Any, writer: Any) -> Any:
    """Return a desk with two learning rates and three seeds: one run failed, one still runs."""
    sweep = [(f"+lr={lr}", f"seed={seed}") for lr in (0.1, 0.2) for seed in (1, 2, 3)]
    launch = desk.freeze(sweep=sweep)
    for index in range(6):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.metrics(10, accuracy=0.9 + index / 100)
        if index < 5:
            attempt.fail() if index == 4 else attempt.complete()
    return desk


def test_results_say_where_metrics_are_behind(desk: Any, writer: Any) -> None:
    """After a full disk a value is not that of the last step: said in all forms, for that run alone."""
    launch = desk.freeze(sweep=[("lr=1",), ("lr=2",)])
    for index, words in enumerate(("55 rows of metrics were dropped", "the disk is nearly full")):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.metrics(94, loss=0.5)
        attempt.tell(events.Warned(at=START, message=words))
        attempt.complete()
    for form in ((), ("--csv",), ("--over", "lr")):
        said = desk.say("results", *form).err
        assert f"warning: {launch.id}.0: 55 rows of metrics were dropped, so a last value may be" in said
        assert f"{launch.id}.1" not in said
    assert read(desk)["runs"][0]["warnings"] == ["55 rows of metrics were dropped"]


def test_results_over_seeds_are_means_of_completed_runs(seeds: Any) -> None:
    """One row for each of the other overrides, in all three forms."""
    lines = seeds.say("results", "--over", "seed").out.splitlines()
    assert lines == [
        "lr   runs             accuracy",
        "0.1  3                0.91 ± 0.01 (3)",
        "0.2  3 (1 completed)  0.93 (1)",
    ]
    rows = list(csv.DictReader(io.StringIO(seeds.say("results", "--over", "seed", "--csv").out)))
    assert [row["accuracy_n"] for row in rows] == ["3", "1"]
    assert float(rows[0]["accuracy_mean"]) == pytest.approx(0.91)
    assert (rows[1]["runs"], rows[1]["completed"], rows[1]["accuracy_std"]) == ("3", "1", "")
    document = read(seeds, "--over", "seed")
    assert (document["over"], document["overrides"], document["matching"]) == (["seed"], ["lr"], 6)
    first = document["groups"][0]
    assert (first["overrides"], len(first["runs"])) == ({"lr": 0.1}, 3)
    assert first["metrics"]["accuracy"]["std"] == pytest.approx(0.01)


def test_results_over_seeds_are_filtered_sorted_and_limited(seeds: Any) -> None:
    """As other results are; what --over does not know is refused."""
    said = seeds.say("results", "--over=seed", "--sort=-accuracy", "--limit=1", "--json")
    assert [load["overrides"] for load in json.loads(said.out)["groups"]] == [{"lr": 0.2}]
    assert "1 more not shown" in said.err
    assert len(read(seeds, "--over", "seed", "--state", "completed")["groups"][1]["runs"]) == 1
    assert len(read(seeds, "--over", "seed,lr")["groups"]) == 1
    with pytest.raises(UsageError, match="overrides that vary: lr, seed"):
        seeds.say("results", "--over", "sed")


def test_results_say_which_launch_has_the_rest_of_a_sweep(desk: Any) -> None:
    """What was not launched again as it had completed is one command away."""
    old, new = desk.freeze("old", sweep=[("a=1",), ("a=2",)]), desk.freeze("new", minute=1)
    known = events.RunsKnown(at=new.created_at, launch=old.id, runs=(0, 1))
    desk.tell(new, known)
    desk.environ = {"HPCKIT_OUTPUTS": str(desk.folder)}
    said = desk.say("results")
    command = f"hpckit results {old.id} {new.id}"
    assert f"2 more runs of this sweep: {old.id} (0-1). All together: `{command}`" in said.err
    assert read(desk)["elsewhere"] == [{"launch": old.id, "runs": [0, 1]}]
    both = desk.say("results", old.id, new.id)
    assert "more run" not in both.err


def test_results_name_the_rest_by_folder_if_that_is_not_the_default(desk: Any) -> None:
    """The command finds it, wherever --output-dir was."""
    old, new = desk.freeze("old"), desk.freeze("new", minute=1)
    desk.tell(new, events.RunsKnown(at=new.created_at, launch=old.id, runs=(0,)))
    assert f"`hpckit results {old.folder} {new.folder}`" in desk.say("results").err


def test_results_are_sorted_by_the_last_part_of_a_key(desk: Any) -> None:
    """As tables show it, and `--override` takes it."""
    desk.freeze(sweep=[("params.lr=0.2", "x.a=1"), ("params.lr=0.1", "y.a=2")])
    whole, last = (desk.say("results", "--sort", key, "--json") for key in ("params.lr", "lr"))
    assert [load["index"] for load in json.loads(last.out)["runs"]] == [1, 0]
    assert last.out == whole.out
    with pytest.raises(UsageError, match="have no column 'a'"):
        desk.say("results", "--sort", "a")


def test_results_with_reruns_have_the_newest_completed_run_of_each_point(desk: Any, writer: Any) -> None:
    """What a rerun of a rerun completed stands in the place of what failed, also with changes."""
    old = desk.freeze("old", sweep=[("lr=2",), ("lr=3",)], seed=1)
    same = desk.freeze("same", minute=1, sweep=[("lr=2",)], seed=1)
    changed = desk.freeze("changed", minute=2, sweep=[("lr=4",)], seed=2)
    other = desk.freeze("other", minute=3, sweep=[("lr=2",)], seed=1)
    for launch, good in ((old, False), (same, False), (changed, True), (other, True)):
        attempt = writer(launch=launch)
        attempt.start()
        attempt.complete() if good else attempt.fail()
    writer(launch=old, index=1).start()
    desk.tell(same, events.RunsRerun(at=same.created_at, launch=old.id, runs=(0,)))
    desk.tell(changed, events.RunsRerun(at=changed.created_at, launch=same.id, runs=(0,)))
    runs = read(desk, f"{old.id}.0", "--with-reruns")["runs"]
    assert [run["launch"] for run in runs] == [changed.id]
    desk.tell(changed, events.RunsKnown(at=changed.created_at, launch="gone", runs=(0,)))
    desk.tell(other, events.RunsKnown(at=other.created_at, launch=old.id, runs=(1,)))
    runs = read(desk, old.id, "--with-reruns")["runs"]
    assert {(run["launch"], run["state"]) for run in runs} == {
        (changed.id, "completed"),
        (other.id, "completed"),
    }


def test_results_leave_out_what_is_the_same_or_wide_and_say_so(desk: Any) -> None:
    """A column that tells no rows apart only pushes the others off the screen."""
    word = "w" * 60
    desk.freeze(sweep=[(f"a={place}", f"x={word}{place}", f"b={place // 2}") for place in range(4)])
    said = desk.say("results", "--override", "b=1").out
    assert said.splitlines()[0].split()[:2] == ["index", "a"]
    assert "not shown: b=1 in all rows, x is wide (--csv and --json have all)" in said
    assert f"{word}3" in desk.say("results", "--csv").out


def test_results_without_metrics_say_how_to_log_one(swept: Any, desk: Any, writer: Any) -> None:
    """An unchanged script has no metric, and its author looks here."""
    assert "no metrics" not in swept.say("results").err
    launch = desk.freeze("bare", minute=1)
    assert "no metrics" not in desk.say("results").err
    attempt = writer(launch=launch, index=0)
    attempt.start()
    attempt.complete()
    said = desk.say("results").err
    assert "$HPCKIT_ATTEMPT_DIR/metrics.jsonl" in said
    assert f"`hpckit results {launch.folder} --printed loss`" in said
    desk.environ = {"HPCKIT_OUTPUTS": str(desk.folder)}
    assert f"`hpckit results {launch.id} --printed loss`" in desk.say("results").err


def test_results_find_metrics_in_what_was_printed(desk: Any, writer: Any) -> None:
    """Whoever named none before the launch does not have to train again."""
    launch = desk.freeze(sweep=[("lr=1",), ("lr=2",)])
    for index in range(2):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.log(0, f"step 1 loss: 0.9\n\rloss 0.7\rloss: 0.{index + 4} acc 81%\nbye")
        attempt.complete()
    assert "loss" not in desk.say("results", "--csv").out
    answer = json.loads(desk.say("results", "--printed", "loss,acc", "--json").out)
    assert [run["metrics"] for run in answer["runs"]] == [{"loss": 0.4, "acc": 81}, {"loss": 0.5, "acc": 81}]
    assert "0.4" in desk.say("results", "--printed", "loss", "--sort", "loss", "--limit", "1").out
    with pytest.raises(ConfigError, match="regular expression"):
        desk.say("results", "--printed", "(?P<x")


def test_results_name_metrics_that_no_printed_line_had(desk: Any, writer: Any) -> None:
    """A name that is spelled otherwise in the output is not worth another launch to find out."""
    observe = Observe(printed_metrics=["loss", r"val (?P<step>\d+) (?P<acc>\S+)", "f1"])
    launch = desk.freeze(sweep=[("lr=1",), ("lr=2",), ("lr=3",)], observe=observe)
    assert "no line" not in desk.say("results").err
    first, second, third = (writer(launch=launch, index=index) for index in range(3))
    first.start()
    first.fail()
    said = desk.say("results").err
    assert f"{launch.id}: no line that rank 0 printed matched loss, acc, f1 (observe." in said
    assert "no metrics" not in said
    second.start()
    second.metrics(1, loss=0.5)
    second.complete()
    assert "matched acc, f1 (observe.printed_metrics)" in desk.say("results").err
    third.start()
    third.metrics(1, acc=0.5)
    assert "matched acc, f1 (" in desk.say("results").err
    third.complete()
    assert "matched f1 (" in desk.say("results").err
    launch.paths.configs_file_of_run(0).unlink()
    assert desk.say("results").err == ""


def test_results_name_each_column_once(desk: Any, writer: Any) -> None:
    """A metric or an override that is named like another column says what it is."""
    launch = desk.freeze(sweep=[("+lr=0.1", "+step=7"), ("+lr=0.2", "+step=8")])
    for index in (0, 1):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.metrics(10, time=9.5 - index, lr=3.0, launch=4.0, goodput=5.0, loss=0.5)
        attempt.complete()
    first, *rows = csv.reader(io.StringIO(desk.say("results", "--csv", "--goodput").out))
    assert len({*first}) == len(first)
    row = dict(zip(first, rows[0], strict=True))
    assert (row["time"], row["metrics.time"]) == ("120.0", "9.5")
    assert (row["lr"], row["metrics.lr"], row["overrides.step"], row["step"]) == (*("0.1", "3.0", "7", "10"),)
    assert (row["metrics.launch"], row["metrics.goodput"], row["loss"]) == ("4.0", "5.0", "0.5")
    head, line = (text.split() for text in desk.say("results").out.splitlines()[:2])
    assert (line[head.index("metrics.time")], line[head.index("time")]) == ("9.5", "2:00")
    assert [run["index"] for run in read(desk, "--sort", "metrics.time")["runs"]] == [1, 0]
    assert read(desk)["metrics"] == ["time", "lr", "launch", "goodput", "loss"]
    said = desk.say("results", "--over", "lr", "--csv", "--sort", "-metrics.time").out
    assert [row["metrics.time_mean"] for row in csv.DictReader(io.StringIO(said))] == ["9.5", "8.5"]


def test_results_know_what_a_run_leaves_at_its_default(desk: Any, writer: Any) -> None:
    """Equal configurations are one row, whether a word or a file says what they have."""
    params = {"batch_size": 32, "text": "1", "model": {"depth": 2}}
    told = "params.batch_size=32"
    old = desk.freeze("old", sweep=[("seed=1", told), ("seed=2", told)], seed=1, params=params)
    new = desk.freeze("new", minute=1, sweep=[("seed=3",), ("seed=4",)], seed=2, params=params)
    for launch in (old, new):
        for index in (0, 1):
            attempt = writer(launch=launch, index=index)
            attempt.start()
            attempt.metrics(10, accuracy=0.9)
            attempt.complete()
    rows = read(desk, old.id, new.id, "--over", "seed")["groups"]
    assert [(row["overrides"], len(row["runs"])) for row in rows] == [({}, 4)]
    words = ("seed=5", "params.batch_size=6_4", "params.text='2'", "params.model.depth=3")
    more = desk.freeze(
        *("more",), minute=2, sweep=[words], params={"batch_size": 64, "text": "2", "model": {"depth": 3}}
    )
    runs = read(desk, old.id, new.id, more.id)["runs"]
    found = [[*run["overrides"].values()] for run in runs]
    assert found == [*([seed, 32, "1", 2] for seed in (1, 2, 3, 4)), [5, 64, "2", 3]]
    lines = desk.say("results", old.id, new.id, more.id, "--csv").out.splitlines()
    assert [line.split(",")[3] for line in lines[1:]] == [*["32"] * 4, "6_4"]


def test_results_leave_blank_what_a_configuration_lacks(desk: Any) -> None:
    """A key that was added, a group, and what an adaptive run has not asked for yet."""
    desk.freeze(sweep=[("+params.new=1", "resources=big"), ("lr=2",)], params={"old": 3})
    assert read(desk)["runs"][1]["overrides"] == {"lr": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0.2", 0.2), ("1e-3", 0.001), ("1_000", 1000), ("-3", -3), ("True", True)),
        *(("null", None), ("007", "007"), ("nan", "nan"), ("1e999", "1e999"), ("", "")),
        *(("9" * 5000, "9" * 5000), ("choice(1,2)", "choice(1,2)"), ("[1", "[1")),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_values_of_overrides_have_their_type(text: str, value: object) -> None:
    """A program need not parse again what Hydra has parsed."""
    found = parse_override_value(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        *("'1'", '"1"', "'a b'", r"'it\'s'", r"'a\b'", r"'a\\'", r'"a\"b"', "'[1]'"),
        *("[]", "{}", "[ ]", "[1, 2.5,true]", "[[1],[x]]", "[null,'null']", "{a:1,b:[x,{c:'y, z'}]}"),
        *(r"a\,b", r"a\ ", "a b", "a:b", "{a:b:c}", "{1:2}", "{a.b: 1}", "${x.y}", "[${x},1]"),
        *("1:30", "010", "+3", ".5", "5.", "1.e3", "1_000", "TRUE", "NULL", "Null", "-"),
    ],
)
def test_values_of_overrides_are_what_hydra_reads(text: str) -> None:
    """Quotes are taken off, lists and mappings are such, and a quoted number stays a text."""
    parsed = OverridesParser.create().parse_override(f"x={text}")
    found = parse_override_value(text)
    assert repr(found) == repr(_plain(parsed.value()))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.text if isinstance(value, QuotedString) else value


def test_results_print_what_was_typed_and_json_what_it_is(desk: Any) -> None:
    """A quoted 1 is a text, an escaped reference none; a table has it as a user writes it again."""
    desk.freeze(sweep=[("a='1'", "b=[1,2]", r"c='\${x}'"), ("a=1", "b={x: null}", r"c=a\\\${x}")])
    assert list(csv.reader(io.StringIO(desk.say("results", "--csv").out)))[1][1:4] == [
        *("'1'", "[1,2]", r"'\${x}'")
    ]
    for verb, name in (("results", "runs"), ("status", "runs")):
        runs = json.loads(desk.say(verb, "--json").out)[name]
        assert [run["overrides"] for run in runs] == [
            {"a": "1", "b": [1, 2], "c": "${x}"},
            {"a": 1, "b": {"x": None}, "c": r"a\${x}"},
        ]


def test_json_has_variables_of_the_environment_as_texts(desk: Any) -> None:
    """A run gets the text 1.10, not the number 1.1; a user's own key is the number."""
    desk.freeze(sweep=[("env.V=1.10", "v=1.10"), ("env.V='2'", "v=2")])
    for verb in ("results", "status"):
        runs = json.loads(desk.say(verb, "--json").out)["runs"]
        found = [run["overrides"] for run in runs]
        assert found == [{"env.V": "1.10", "v": 1.1}, {"env.V": "2", "v": 2}]
