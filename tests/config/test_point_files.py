"""Points from a file: what each format means, what is refused, and what a point composes to."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from hpckit.config.compose import compose_sweep_points
from hpckit.config.overrides import parse_hydra_overrides
from hpckit.config.points import encode_hydra_value
from hpckit.config.request import ComposeRequest
from hpckit.config.session import Session, open_hydra_session
from hpckit.errors import ConfigError

Requester = Callable[..., ComposeRequest]

_COMMAND = ("experiment=command", "command=[true]", "cluster=local")

FILES = {
    "points.csv": 'recovery,seed,+lr,+x\nnever,1,0.1,"\'a, b\'"\npatient,,1e-3,"[1,2]"\n',
    "points.yaml": "- {recovery: never, seed: 1, +lr: 0.1, +x: 'a, b'}\n\n"
    "- recovery: patient\n  +lr: 1e-3\n  +x: [1, 2]\n",
    "points.jsonl": '{"recovery": "never", "seed": 1, "+lr": 0.1, "+x": "a, b"}\n\n'
    '{"recovery": "patient", "+lr": 1e-3, "+x": [1, 2]}\n',
}


@pytest.mark.parametrize("name", FILES)
def test_points_of_a_file_are_composed_in_its_order(
    name: str, tmp_path: Path, request_for: Requester
) -> None:
    """Groups, types, quotes and lists mean what they do on the command line; a gap sets nothing."""
    (tmp_path / name).write_text(FILES[name])
    points = compose_sweep_points(request_for(*_COMMAND, f"sweep.points={name}", multirun=True))
    found = [(p.settings.recovery.requeue, p.settings.seed, p.config["lr"], p.config["x"]) for p in points]
    assert found == [(False, 1, 0.1, "a, b"), (True, 0, 0.001, [1, 2])]
    keys = [{w.lstrip("+").partition("=")[0] for w in p.overrides[3:]} for p in points]
    assert keys == [{"recovery", "seed", "lr", "x"}, {"recovery", "lr", "x"}]
    (tmp_path / name).unlink()
    for point in points:
        assert compose_sweep_points(request_for(*point.overrides)) == (point,)


def test_points_of_a_file_multiply_with_swept_keys_in_the_order_of_the_words(
    tmp_path: Path, request_for: Requester
) -> None:
    """Each point with each value; zipped keys beside the file stay together."""
    (tmp_path / "p.csv").write_text("seed,+lr\n1,5\n2,6\n")
    words = ("sweep.points=p.csv", "+a=1,2", "+b=3,4", "sweep.zip=[[a,b]]")
    points = compose_sweep_points(request_for(*_COMMAND, *words, multirun=True))
    assert [point.overrides[3:7] for point in points] == [
        ("seed=1", "+lr=5", "+a=1", "+b=3"),
        ("seed=1", "+lr=5", "+a=2", "+b=4"),
        ("seed=2", "+lr=6", "+a=1", "+b=3"),
        ("seed=2", "+lr=6", "+a=2", "+b=4"),
    ]


def test_columns_may_be_for_one_stage(
    tmp_path: Path, request_for: Requester, write_conf: Callable[..., object]
) -> None:
    """`STAGE:KEY` is a key of that stage alone; all stages have the points of the file."""
    stages = "stages: {train: {}, evaluate: {}}\n"
    write_conf({"experiment/mine": f"# @package _global_\ncommand: [true]\nlr: 0\n{stages}"})
    (tmp_path / "p.csv").write_text("lr,evaluate:seed\n1,3\n2,4\n")
    words = ("experiment=mine", "cluster=local", "sweep.points=p.csv")
    points = compose_sweep_points(request_for(*words, multirun=True))
    assert [(point.stage, point.config["lr"], point.settings.seed) for point in points] == [
        ("train", 1, 0),
        ("train", 2, 0),
        ("evaluate", 1, 3),
        ("evaluate", 2, 4),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.csv", "seed,recource\n1,cpu\n", r"p.csv, line 2: recource=cpu: .*mean resources"),
        ("p.csv", "seed\n1\n\nabc\n", r"p.csv, line 4: seed=abc: .*Integer"),
        ("p.csv", 'seed,+x\n1,"a,b"\n', r"line 2: \+x=a,b has several values"),
        ("p.csv", "seed,+x\n1,a(b\n", r"line 2: '\+x=a\(b' is not an override"),
        ("p.csv", "seed,+x\n1\n", r"line 2 has 1 value, .* 2 keys: seed, \+x"),
        ("p.jsonl", '{"+x": {"nan": 1}}', "line 1: 'nan' cannot be a key of a dictionary"),
        ("p.csv", "seed,seed\n1,2\n", "line 1: seed appears twice"),
        ("p.csv", "seed,\n1,2\n", "line 1: column 2 has no key"),
        ("p.csv", "seed;lr\n1;2\n", "separated by commas"),
        ("p.csv", 'seed\n"1\n', "line 2 is not CSV"),
        ("p.csv", "seed\n", "p.csv has no points"),
        ("p.csv", "", "p.csv has no points"),
        ("p.csv", "seed=1\n2\n", "'seed=1' is not a key"),
        ("p.csv", "sweep.seed\n1\n", "cannot set how the sweep is done"),
        ("p.csv", "hydra.job.name\n1\n", r"line 2: hydra.job.name=1: hpckit uses Hydra"),
        ("p.yaml", "seed: 1\n", "does not contain a list of points"),
        ("p.yaml", "- 1\n", "line 1: a point is a mapping"),
        ("p.yaml", "- {seed: [1\n", "is not YAML"),
        ("p.yaml", "- &a {seed: 1}\n- *a\n", "alias"),
        ("p.yaml", "- {seed: 1}\n- {seed: 1, seed: 2}\n", "line 2: seed appears twice"),
        ("p.yaml", "- {seed: 1}\n- {seed: !env HOME}\n", r"line 2: a tag \(!\) has no meaning"),
        ("p.yaml", "- {seed: !!python/name:os.system ''}\n", r"the tag !!python/name:os.system"),
        ("p.yaml", "- {seed: !!set {a}}\n", r"the tag !!set has no meaning"),
        ("p.yaml", "- {seed: !!binary aGk=}\n", r"the tag !!binary has no meaning"),
        ("p.jsonl", '{"seed": 1}\n{"seed":\n', "line 2 is not JSON"),
        ("p.jsonl", '{"seed": "\\ud800"}\n', "line 1 is not JSON.*surrogates not allowed"),
        ("p.jsonl", '{"x\\ud800": 1}\n', "line 1 is not JSON.*surrogates not allowed"),
        ("p.jsonl", "[1]\n", "line 1: a point is a mapping"),
        ("p.txt", "seed\n1\n", r"\.csv, \.yaml, \.yml, \.jsonl"),
        ("other.csv", "seed\n1\n", "p.csv cannot be read: No such file"),
    ],
)
def test_file_that_cannot_be_read_is_one_error_with_its_line(
    name: str, text: str, message: str, tmp_path: Path, request_for: Requester
) -> None:
    """File, line, key and value are named."""
    (tmp_path / name).write_text(text)
    asked = "p.csv" if name == "other.csv" else name
    request = request_for(*_COMMAND, f"sweep.points={asked}", multirun=True)
    with pytest.raises(ConfigError, match=message) as caught:
        compose_sweep_points(request)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sweep.points=p.csv", "seed=4"), "p.csv sets seed, and so does seed=4"),
        (("sweep.points=p.csv", "seed=4,5"), "p.csv sets seed"),
        (("sweep.points=p.csv", "sweep.points=p.csv"), "given twice"),
        (("sweep.points=p.csv,q.csv",), "name of one file"),
        (("sweep.points=.",), "not a file"),
        (("sweep={points: p.csv}",), "in your configuration"),
        (("sweep.points=p.csv", "+x=1,2", "sweep.zip=[[seed,x]]"), "group already"),
        (
            ("sweep.points=p.csv", "sweep.sampler=random", "sweep.samples=2"),
            "sweep.sampler=random chooses them",
        ),
    ],
)
def test_file_goes_with_what_it_can_go_with(
    words: tuple[str, ...], message: str, tmp_path: Path, request_for: Requester
) -> None:
    """What would contradict it is refused with what to do."""
    (tmp_path / "p.csv").write_text("seed\n1\n2\n")
    with pytest.raises(ConfigError, match=message) as caught:
        compose_sweep_points(request_for(*_COMMAND, *words, multirun=True))
    assert caught.value.hint
    with pytest.raises(ConfigError, match="is a sweep, but this is a single run"):
        compose_sweep_points(request_for(*_COMMAND, "sweep.points=p.csv"))


def test_yaml_texts_are_quoted_or_tagged(tmp_path: Path, request_for: Requester) -> None:
    """`!!str 1` is the text 1, as "1" is; a plain 1 is a number, and so is 1e-3."""
    (tmp_path / "p.yaml").write_text('- {+x: !!str 1}\n- {+x: "1"}\n- {+x: 1}\n- {+x: 1e-3}\n')
    points = compose_sweep_points(request_for(*_COMMAND, "sweep.points=p.yaml", multirun=True))
    assert [point.config["x"] for point in points] == ["1", "1", 1, 0.001]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.csv", "env.V,env.T,+x,+y\n1.10,1:30:00,1.10,010\n"),
        ("p.yaml", "- {env.V: 1.10, env.T: 1:30:00, +x: 1.10, +y: 010}\n"),
        ("p.yml", "- {env: {V: 1.10, T: 1:30:00}, +x: 1.10, +y: 010}\n"),
        ("p.jsonl", '{"env.V": 1.10, "env.T": "1:30:00", "+x": 1.10, "+y": "010"}\n'),
    ],
)
def test_numbers_are_what_was_typed_as_on_the_command_line(
    name: str, text: str, tmp_path: Path, request_for: Requester
) -> None:
    """A version keeps its last zero in hpckit's keys, whichever format the points are in."""
    (tmp_path / name).write_text(text)
    (point,) = compose_sweep_points(request_for(*_COMMAND, f"sweep.points={name}", multirun=True))
    assert dict(point.settings.env) == {"V": "1.10", "T": "1:30:00"}
    assert (point.config["x"], point.config["y"]) == (1.1, "010")


def test_file_is_utf8_with_or_without_a_mark(tmp_path: Path, request_for: Requester) -> None:
    """A spreadsheet's byte order mark is no part of the first key; other encodings are named."""
    (tmp_path / "p.csv").write_bytes("\ufeffseed\n7\n".encode())
    (point,) = compose_sweep_points(request_for(*_COMMAND, "sweep.points=p.csv", multirun=True))
    assert point.settings.seed == 7
    (tmp_path / "p.csv").write_bytes(b"+x\n\xff\n")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        compose_sweep_points(request_for(*_COMMAND, "sweep.points=p.csv", multirun=True))


def test_points_of_a_file_share_a_composition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_for: Requester
) -> None:
    """Hydra composes once for each choice of groups, and each set of keys."""
    loads: list[Sequence[str]] = []
    load = Session.compose_config

    def counted(session: Session, overrides: Sequence[str]) -> DictConfig:
        loads.append(overrides)
        return load(session, overrides)

    monkeypatch.setattr(Session, "compose_config", counted)
    rows = [f"{seed},{('never', 'patient')[seed % 2]},{seed or ''}" for seed in range(60)]
    (tmp_path / "p.csv").write_text("\n".join(["seed,recovery,+params.x", *rows]))
    points = compose_sweep_points(request_for(*_COMMAND, "sweep.points=p.csv", multirun=True))
    assert [point.settings.seed for point in points] == list(range(60))
    assert [point.config["params"] for point in points] == [{}, *({"x": n} for n in range(1, 60))]
    assert len(loads) == 3


# Hydra's grammar knows no quoted keys, so no key is one of these.
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,4}", fullmatch=True).filter(
    lambda name: name not in {"nan", "inf", "null", "true", "false"}
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0$"), max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=st.lists(VALUES, min_size=1, max_size=4))
def test_value_is_written_so_that_the_grammar_reads_it_back(
    values: list[Any], request_for: Requester
) -> None:
    """Quotes, backslashes, commas, brackets and what only looks like a number included."""
    with open_hydra_session(request_for()) as session:
        words = [f"+x={encode_hydra_value(value)}" for value in values]
        read = [override.value() for override in parse_hydra_overrides(words, session.loader)]
    assert repr(read) == repr(values)


ROWS = st.lists(
    st.fixed_dictionaries(
        {"seed": st.integers(0, 9)},
        optional={
            "recovery": st.sampled_from(["never", "patient"]),
            "+x": st.one_of(st.integers(), st.booleans(), st.sampled_from(["a", "b c", "1, 2"])),
        },
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=ROWS, format_=st.sampled_from(["csv", "yaml", "jsonl"]))
def test_file_has_the_points_of_its_words_one_at_a_time(
    rows: list[dict[str, Any]], format_: str, tmp_path: Path, request_for: Requester
) -> None:
    """As many points as rows, in order, each what its words compose to by themselves."""
    file = tmp_path / f"p.{format_}"
    file.write_text(as_text(rows, format_))
    points = compose_sweep_points(request_for(*_COMMAND, f"sweep.points=p.{format_}", multirun=True))
    assert len(points) == len(rows)
    for point, row in zip(points, rows, strict=True):
        words = [f"{key}={encode_hydra_value(value)}" for key, value in row.items()]
        (alone,) = compose_sweep_points(request_for(*_COMMAND, *words))
        assert repr((alone.config, alone.settings)) == repr((point.config, point.settings))


def as_text(rows: list[dict[str, Any]], format_: str) -> str:
    """Return a file with these points, as other programs write it."""
    if format_ == "jsonl":
        return "".join(f"{json.dumps(row)}\n" for row in rows)
    if format_ == "yaml":
        return yaml.safe_dump(rows)
    lines: list[str] = []

    class Sink:
        def write(self, text: str) -> None:
            lines.append(text)

    keys = ["seed", "recovery", "+x"]
    writer = csv.DictWriter(Sink(), keys)
    writer.writeheader()
    writer.writerows({key: encode_hydra_value(value) for key, value in row.items()} for row in rows)
    return "".join(lines)
