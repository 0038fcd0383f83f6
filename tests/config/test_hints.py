"""Hints that are followed: what a message says to write composes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError

Requester = Callable[..., ComposeRequest]
Writer = Callable[[Mapping[str, str]], Path]

_HEAD = "# @package _global_\n"


def refusal(request: ComposeRequest) -> ConfigError:
    """Return why a request is refused."""
    with pytest.raises(ConfigError) as caught:
        compose_sweep_points(request)
    return caught.value


def quoted(hint: str) -> str:
    """Return the word that a hint says to write, as the shell hands it on."""
    (word,) = shlex.split(re.findall(r"'[^']+'", hint)[0])
    return word


@pytest.mark.parametrize(
    ("word", "kept"), [("resources.mail_type=END,FAIL", "END,FAIL"), ("resources.nodelist=n1,n2", "n1,n2")]
)
def test_hint_for_a_comma_keeps_it_as_text(word: str, kept: str, request_for: Requester) -> None:
    """A key that takes one text: the hint's word holds the comma, and composes."""
    hint = refusal(request_for("experiment=command", "command=true", word)).hint
    (point,) = compose_sweep_points(request_for("experiment=command", "command=true", quoted(hint)))
    resources = point.settings.resources
    assert kept in (resources.mail_type, resources.nodelist)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("python", "train.py"), "python train.py"),
        (("train.py",), "python train.py"),
        (("experiment=command", "command=python", "train.py"), "python train.py"),
        (("experiment=command", "command=bash", "run.sh"), "bash run.sh"),
        (("seed=3", "bash", "run it.sh"), "bash 'run it.sh'"),
    ],
)
def test_hint_for_a_program_among_the_words_runs_it(
    words: tuple[str, ...], command: str, request_for: Requester
) -> None:
    """`launch python train.py`: the hint is the whole command line, and composes to that."""
    hint = refusal(request_for(*words)).hint
    program, verb, *given = shlex.split(hint)
    assert (program, verb) == ("hpckit", "launch")
    place = given.index("--")
    (point,) = compose_sweep_points(request_for(*given[:place], command=tuple(given[place + 1 :])))
    assert point.settings.command == shlex.split(command)


@pytest.mark.parametrize(
    "line", ["- /resources: one_gpu", "- override resources: one_gpu", "- resources: one_gpu"]
)
def test_hint_for_a_group_in_a_file_is_the_line_to_write(
    line: str, request_for: Requester, write_conf: Writer
) -> None:
    """A group chosen in another way than by `override /group`: file, line, and what to write."""
    other = f"{_HEAD}defaults:\n  - /resources: cpu\n"
    text = f"{_HEAD}defaults:\n  {line}\nentry_point: a:b\n"
    write_conf({"experiment/another": other, "experiment/mine": text})
    error = refusal(request_for("experiment=mine"))
    assert "conf/experiment/mine.yaml, line 3: " in error.message
    written = re.search(r"- override /resources: one_gpu", error.hint)
    assert written
    write_conf({"experiment/mine": text.replace(line, written[0])})
    (point,) = compose_sweep_points(request_for("experiment=mine"))
    assert point.settings.resources.gpus_per_node == 1


def test_hint_for_a_forgotten_package_is_its_first_line(request_for: Requester, write_conf: Writer) -> None:
    """Without `# @package _global_` the file and that line are named, whatever word fails first."""
    text = "entry_point: w:train\nlr: 1\n"
    write_conf({"experiment/mine": text})
    for words in (("experiment=mine",), ("experiment=mine", "lr=2")):
        error = refusal(request_for(*words))
        assert "conf/experiment/mine.yaml" in error.message
        first = error.hint.partition(": ")[2]
        write_conf({"experiment/mine": f"{first}\n{text}"})
        assert compose_sweep_points(request_for(*words))[0].settings.entry_point == "w:train"
        write_conf({"experiment/mine": text})


def test_hint_for_a_missing_option_blames_who_asked(request_for: Requester, write_conf: Writer) -> None:
    """The word of several that is wrong; of a file its line, and not the file that it overrides."""
    assert refusal(request_for("cluster=local", "cluster=locl")).message.startswith("cluster=locl:")
    write_conf({"mine": "defaults:\n  - hpckit\n  - override cluster: lab\n"})
    error = refusal(request_for(config_name="mine"))
    assert "conf/mine.yaml, line 3: cluster has no option 'lab'" in error.message
    write_conf({"cluster/lab": "kind: local\n"})
    assert compose_sweep_points(request_for("entry_point=a:b", config_name="mine"))


def test_hint_for_yml_is_the_other_name(request_for: Requester, write_conf: Writer) -> None:
    """A file that ends in .yml is found, and said how it has to be called."""
    conf = write_conf({"experiment/other": _HEAD})
    (conf / "experiment/b.yml").write_text(f"{_HEAD}entry_point: a:b\n")
    hint = refusal(request_for("experiment=b")).hint
    old, new = re.fullmatch(r"Rename (\S+) to (\S+)", hint).groups()  # type: ignore[union-attr]
    Path(old).rename(Path(old).with_name(new))
    assert compose_sweep_points(request_for("experiment=b"))


def test_hint_for_a_file_that_is_not_text_names_it(request_for: Requester, write_conf: Writer) -> None:
    """Latin-1: which file."""
    conf = write_conf({"experiment/other": _HEAD})
    (conf / "experiment/mine.yaml").write_bytes(_HEAD.encode() + b'name: "\xe9"\n')
    assert "conf/experiment/mine.yaml is not text in UTF-8" in refusal(request_for("experiment=mine")).message


def test_hint_names_the_file_that_was_read_of_two_that_are_not_text(
    request_for: Requester, write_conf: Writer
) -> None:
    """Another one in the folders may be broken, too, and is not chosen."""
    conf = write_conf({"experiment/other": _HEAD})
    for name in ("b", "a"):
        text = _HEAD.encode() + f'name: "{name}'.encode() + b'\xe9"\n'
        (conf / f"experiment/{name}.yaml").write_bytes(text)
    for name in ("b", "a"):
        message = refusal(request_for(f"experiment={name}")).message
        assert f"conf/experiment/{name}.yaml is not text" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n- b\n", "it is a list, but must be a mapping"),
        ("defaults: [hpckit]\ncheckpoint: best.pt\n", "checkpoint is 'best.pt', but it is a section"),
    ],
)
def test_hint_for_a_file_of_the_wrong_kind_says_what_it_is(
    text: str, said: str, request_for: Requester, write_conf: Writer
) -> None:
    """A list, or text where a section of hpckit's belongs: the file, and what is there."""
    write_conf({"mine": text})
    message = refusal(request_for(config_name="mine")).message
    assert "conf/mine.yaml" in message
    assert said in message


def test_hint_for_causes_lists_those_there_are(request_for: Requester) -> None:
    """A cause that is none is never proposed as a key to add; one that is one can be added."""
    error = refusal(request_for("recovery.restarts.hng=3"))
    assert "Did you mean hang?" in error.message
    added = refusal(request_for("recovery=never", "recovery.restarts.hang=3")).hint.split()[-1]
    (point,) = compose_sweep_points(request_for("recovery=never", added))
    assert point.settings.recovery.restarts["hang"] == 3


def test_hint_for_a_time_says_its_unit(request_for: Requester) -> None:
    """Slurm's way of writing a time limit is answered with the unit."""
    assert "minutes, a day is 1440" in refusal(request_for("resources.timeout_min=1x")).hint


def test_hint_for_too_many_points_counts_none_that_were_not_listed(request_for: Requester) -> None:
    """A million values are not called 100001."""
    message = refusal(request_for("seed=range(0,1000000)", multirun=True)).message
    assert message == "The sweep has more than 100000 points; at most 100000 are launched."


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("Lr=1", "lr"),
        ("resources.gpus=2", "resources.gpus_per_node"),
        ("resources.timeout=2", "resources.timeout_min"),
        ("resources.time=2", "resources.timeout_min"),
        ("resources.ntasks_per_node=2", "resources.tasks_per_node"),
        ("resources.cpus=2", "resources.cpus_per_task"),
    ],
)
def test_first_word_or_other_case_of_a_key_names_it(request_for: Requester, word: str, meant: str) -> None:
    """What other tools call it, or how it is spelt elsewhere."""
    assert f"Did you mean {meant}?" in refusal(request_for("experiment=digits", word)).message
