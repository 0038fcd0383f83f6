"""What new users type instead of what is meant: one clear error, and what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

_CASES = {
    "option of a script": (
        ("launch", "--epochs", "3"),
        "unrecognized arguments: --epochs",
        "dashes: epochs=3 options of your own script belong after --: hpckit launch -- python",
    ),
    "option with an equals sign": (
        ("check", "--cluster=local"),
        "unrecognized arguments: --cluster=local",
        "without dashes: cluster=local options of your own script belong after --: hpckit check",
    ),
    "option with a dash inside": (("launch", "--batch-size", "8"), "--batch-size", "batch_size=8"),
    "nothing to measure": (("bench",), "KIND is missing", "KIND is one of comm"),
    "option before an override": (("launch", "--lr", "seed=1"), "--lr", "without dashes: lr=..."),
    "option twisted": (("launch", "--wiat"), "unrecognized arguments: --wiat", "mean --wait?"),
    "option of another verb, near": (("status", "--wacth"), "--wacth", "did you mean --watch?"),
    "option of another verb, far": (("status", "--gpus"), "--gpus", "`hpckit status --help`"),
    "option negated": (("launch", "--no-wait"), "--no-wait", "leave --wait out: it is off by"),
    "folder of launches left empty": (
        ("launch", "output_dir=", "experiment=digits"),
        "output_dir is empty",
        "leave the key out for ./outputs",
    ),
    "option, a letter": (("launch", "-x"), "-x", "`hpckit launch --help` lists the options"),
    "a program": (
        ("launch", "python", "train.py"),
        "'python' is not an override (key=value). Put a program to run after --.",
        "hpckit launch -- python train.py",
    ),
    "a program behind overrides": (
        ("launch", "cluster=local", "bash", "run it.sh"),
        "'bash' is not an override",
        "hpckit launch cluster=local -- bash 'run it.sh'",
    ),
    "a program with options": (
        ("launch", "python", "train.py", "--lr", "3"),
        "unrecognized arguments: --lr 3",
        "hpckit launch -- python train.py --lr 3",
    ),
    "a script": (
        ("launch", "train.py", "a"),
        "'train.py' is not an override",
        "hpckit launch -- python train.py a",
    ),
    "a command without quotes": (
        ("launch", "experiment=command", "command=python", "train.py"),
        "'train.py' is not an override",
        "hpckit launch -- python train.py",
    ),
    "a command whose quotes the shell has eaten": (
        ("launch", "experiment=command", "command=python train.py --lr 0.1,0.2"),
        "asks for a sweep, but this is a single run",
        "Put the command after --: hpckit launch -- python train.py --lr 0.1,0.2",
    ),
    "an argument left out": (("export",), "KIND is missing", "KIND is one of csv, jsonl, openmetrics, trace"),
    "an option left out": (("plot",), "-o is missing", "`hpckit plot --help` lists the options"),
    "a letter transposed": (("export", "cvs"), "KIND is 'cvs'; it is one of", "did you mean csv?"),
    "a decimal comma": (
        ("check", "cluster.price_per_gpu_hour=2,5"),
        "asks for a sweep, but this is a single run",
        "Write decimals with a point: cluster.price_per_gpu_hour=2.5; for a sweep add -m",
    ),
    "a tracker that needs no settings": (
        ("check", "experiment=digits", "tracker=tensorboard"),
        "tracker has no option 'tensorboard'",
        "TensorBoard needs none: write to $HPCKIT_RUN_DIR",
    ),
    "a list taken apart": (
        ("launch", "command=[python,", "train.py]"),
        "a bracket or a quote in it is not closed",
        "quote the whole word: 'command=[python, train.py]'",
    ),
    "a mapping taken apart": (
        ("launch", "seed=1", "params={a:", "1}", "name=x"),
        "'params={a:' is a part of an override",
        "quote the whole word: 'params={a: 1}'",
    ),
    "a text taken apart": (
        ("launch", "name=my", "run"),
        "'run' is not an override",
        "If it belongs to the word before, write 'name=my run'",
    ),
    "a colon": (("launch", "epochs:3"), "'epochs:3' is not an override", "Write epochs=3"),
    "nothing to run": (
        ("launch", "cluster=slurm"),
        "nothing to run: neither entry_point nor command is set",
        "a program: hpckit launch -- python train.py",
    ),
    "half a number": (
        ("launch", "experiment=digits", "lr=0.1x"),
        "lr=0.1x: '0.1x' is not a number, but lr is 0.01 without it",
        "if a text is meant: 'lr=\"0.1x\"'",
    ),
    "half a number, swept": (
        ("check", "-m", "experiment=digits", "lr=0.1,0.2.3"),
        "'0.2.3' is not a number",
        "Write a",
    ),
    "no command": (
        ("launch", "experiment=command"),
        "command is mandatory and has no value",
        "Give it after --: hpckit launch -- python train.py",
    ),
    "nothing behind the dashes": (
        ("render", "--"),
        "no command follows --",
        "for example: hpckit render -- python train.py",
    ),
    "an experiment's function and a command": (
        ("launch", "experiment=digits", "--", "python", "train.py"),
        "both entry_point='hpckit.experiments.digits:train' and command=",
        "choose no other experiment: hpckit launch -- python train.py",
    ),
    "a command twice": (("launch", "command=ls", "--", "ls"), "given twice", "one of them out"),
}


@pytest.mark.parametrize(("words", "said", "hint"), _CASES.values(), ids=_CASES.keys())
def test_a_wrong_word_is_answered_with_the_right_one(
    shell: Any, words: tuple[str, ...], said: str, hint: str
) -> None:
    """Exit code 2, what is wrong, what to write; no traceback, and nothing is written."""
    answer = shell(*words)
    told = " ".join(answer.err.split())
    assert answer.code == 2
    assert answer.out == ""
    assert told.startswith("hpckit: error: ")
    assert said in told
    assert hint in told
    assert "Traceback" not in told
    assert shell.outputs == []


@pytest.mark.parametrize("words", [("lr=auto",), ('lr="0.1x"',), ("lr=1e-3",), ("+mine=0.1x",)])
def test_what_may_be_meant_is_taken(shell: Any, words: tuple[str, ...]) -> None:
    """A text for a number is told of, and no error unless it begins as one."""
    assert shell("launch", "--dry-run", "cluster=local", "experiment=digits", *words).code == 0


def test_a_sweep_of_nothing_is_told(shell: Any) -> None:
    """-m without several values is one run, which is hardly meant."""
    words = ("--dry-run", "cluster=local", "code.snapshot=false")
    assert "this is one run" in shell("launch", "-m", *words, "seed=1", "--", "true").err
    assert "this is one run" not in shell("launch", "-m", *words, "seed=1,2", "--", "true").err
    assert "this is one run" not in shell("launch", *words, "seed=1", "--", "true").err
