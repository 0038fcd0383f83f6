"""Overrides that do not compose: one message with the nearest valid names, no traceback."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError

Requester = Callable[..., ComposeRequest]

_OPTIONS = r"Options of experiment: .*command, digits"
_CASES = {
    "unknown key": ("resources.nodez=2", r"mean resources\.nodes\?", "Known in resources: nodes"),
    "unknown key, added": ("+resources.nodez=2", r"mean resources\.nodes\?", r"\+params\.nodez"),
    "unknown key, in a mapping": ("resources={nodez: 2}", r"mean resources\.nodes\?", "Known in"),
    "section left out": ("nodes=2", r"no key nodes\. Did you mean resources\.nodes", r"\+nodes=2"),
    "section left out, added": ("+nodes=2", r"mean resources\.nodes\?", r"\+\+nodes=2"),
    "section mistyped, added": ("+resource.nodes=2", r"mean resources\.nodes\?", r"\+\+resource"),
    "key mistyped, added": ("+recovry=x", r"mean recovery\?", r"Write recovery="),
    "no key": ("=3", r"^'=3' names no key\.", "Write key=value"),
    "no key, removed": ("~", r"^'~' names no key\.", "Write key=value"),
    "a function's refusal": ("+lr=int(a)", r"grammar: 'int\(a\)': invalid literal", "Write key"),
    "unknown key, removed": ("~sead", r"Did you mean seed or", "Known: name"),
    "key of hpckit, removed": ("~resources.nodes", "does not support deletion", "Set it"),
    "unknown group": ("experimnt=digits", r"Did you mean experiment\?", ""),
    "unknown group with a slash": ("a/b=c", "there is no group a/b", "Groups: checkpoint, cluster"),
    "unknown group, added": ("+resorces/x=c", "There is no group resorces/x", "--info groups"),
    "unknown package": ("resources@x=cpu", "Could not override 'resources@x'", "--info groups"),
    "unknown option": ("experiment=digit", r"'digit'\. Did you mean digits\?", _OPTIONS),
    "option added twice": ("+experiment=command", "already chosen", "Write experiment=command"),
    "option null": ("experiment=null", "must be a string", "experiment=OPTION"),
    "wrong type": ("resources.nodes=two", "'two'.*could not be converted to Int", "takes a whole number"),
    "a number that is none": (
        "observe.row_s=nan",
        r"^observe\.row_s: nan is out of range",
        r"observe\.row_s takes a number, .*seconds\. A number has to be finite",
    ),
    "a number without end": (
        "recovery.backoff_s=inf",
        r"^recovery\.backoff_s: inf is out of range",
        "takes a number",
    ),
    "wrong type, forced": ("++resources.nodes=two", "could not be converted to Int", "takes a whole number"),
    "wrong type at the root": ("seed=x", "seed=x: .*could not be converted", "seed takes a whole number"),
    "wrong type, a list": ("name=[1]", "Cannot convert 'list' to string", "takes a text, or null"),
    "wrong choice": ("runtime.device=gpu", r"expected one of \[auto, cpu, cuda\]", "cpu, cuda"),
    "value below a value": ("resources.nodes.x=3", "resources.nodes.x=3: ", "--cfg"),
    "an option of a group": ("one_gpu", "it has no '='", r"Did you mean resources=one_gpu\?"),
    "no equals sign": ("resources", "it has no '='", r"\+key=value"),
    "a word of the shell": ("a b=3", "'a b=3' is not an override", "quote"),
    "two equals signs": ("name=a=b", "grammar: '=' is not allowed there.", "For one text write"),
    "comma at the end": ("seed=1,", "grammar: a value is missing at its end.$", "key=value"),
    "nothing between": ("seed=1,,2", "grammar: ',' is not allowed there.$", "key=value"),
    "unknown function": ("seed=rnge(3)", r"grammar: 'rnge\(3\)': Unknown function", "key=value"),
    "open bracket": ("name=[1", "not an override in Hydra's grammar", "For one text write"),
    "mandatory": ("experiment=command", r"^command is mandatory", "launch -- python train.py"),
    "interpolation to nothing": ("name=${seeed}", r"name cannot be.*mean seed or", "Known: name"),
    "interpolation of Hydra's": ("name=${hydra:job.id}", "name cannot be resolved", r"not \${hydra"),
    "interpolation unknown": ("name=${a:b}", "Unsupported interpolation type a", r"\${oc.env"),
    "interpolation of a wrong type": ("resources.nodes=${output_dir}", "nodes cannot be.*'outputs'", ""),
    "variable not set": ("checkpoint=scratch", "variable SCRATCH is not set", "Export it"),
}


@pytest.mark.parametrize(("word", "message", "hint"), _CASES.values(), ids=_CASES.keys())
def test_override_refused_is_one_clear_message(
    word: str, message: str, hint: str, request_for: Requester
) -> None:
    """Whatever is wrong, the user reads one line on it and one on what to do."""
    with pytest.raises(ConfigError) as caught:
        compose_sweep_points(request_for(word))
    assert re.search(message, caught.value.message), caught.value.message
    assert re.search(hint, caught.value.hint), caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


def test_override_refused_is_the_one_at_fault(request_for: Requester) -> None:
    """Among many words the message names the wrong one, wherever it stands."""
    words = ("seed=1", "resources.nodez=2", "cluster=sandbox", "+x=3")
    with pytest.raises(ConfigError, match=r"^resources\.nodez=2: "):
        compose_sweep_points(request_for(*words))


@pytest.mark.parametrize("word", ["+mode=1", "+node=1", "+speed=1", "+depth=1", "++param.x=1"])
def test_override_that_adds_a_key_of_ones_own_is_no_slip(word: str, request_for: Requester) -> None:
    """Other names are left alone, and `++` insists on one that looks like hpckit's."""
    (point,) = compose_sweep_points(request_for(word))
    assert word.lstrip("+").partition("=")[0].partition(".")[0] in point.config


def test_override_may_add_to_a_key_that_the_users_files_have(
    request_for: Requester, write_conf: Callable[..., object]
) -> None:
    """A section of the user's own may be named like one of hpckit's, nearly."""
    text = "# @package _global_\nentry_point: train:main\nparam: {a: 1}\n"
    write_conf({"experiment/mine": text})
    (point,) = compose_sweep_points(request_for("experiment=mine", "+param.b=2"))
    assert point.config["param"] == {"a": 1, "b": 2}
