"""Secrets in a file of points: no message quotes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tiers import in_tiers

WORD = "correcthorse"
KEYED = "hf_aaaaaaaaaaaa"

FILES = {
    "open.csv": f"+env.MY_PASSWORD\nfirst\n[{WORD}\n",
    "first.csv": f"+env.MY_PASSWORD\n[{WORD}\n",
    "stage.csv": f"train:+env.MY_PASSWORD\n[{WORD}\n",
    "backslash.csv": f"+env.MY_PASSWORD\n[co\\{WORD}é\n",
    "several.csv": f'+env.MY_PASSWORD\n"a,{WORD}"\n',
    "short.csv": '+env.MY_PASSWORD\n"a,(Zq7"\n',
    "key.csv": f"+env.HF_TOKEN\n[{KEYED}\n",
    "reference.csv": f"+env.MY_PASSWORD\na${{{WORD}\n",
    "nested.jsonl": json.dumps({"+env.MY_PASSWORD": {WORD: 1}}),
    "list.jsonl": json.dumps({"+env.MY_PASSWORD": ["x", f"{WORD} battery"]}),
    "reference.jsonl": json.dumps({"+cluster.env.MY_PASSWORD": f"a${{{WORD}"}),
    "whole.jsonl": json.dumps({"+env": {"MY_PASSWORD": [WORD]}}),
    "nested.yaml": f"- +env.MY_PASSWORD: {{{WORD}: 1}}\n",
    "alias.yaml": f"- +env.MY_PASSWORD: *{WORD}\n",
    "tag.yaml": f"- +env.MY_PASSWORD: !{WORD}\n",
}


@pytest.mark.parametrize(
    "name", in_tiers(FILES, FILES.keys() - {"list.jsonl", "reference.jsonl", "nested.yaml"})
)
@pytest.mark.parametrize("words", [("launch", "-m", "--dry-run"), ("launch", "-m", "--cfg"), ("check", "-m")])
def test_security_points_are_not_quoted_in_errors(shell: Any, name: str, words: tuple[str, ...]) -> None:
    """A value for a variable that looks like a secret is named by file and key, never shown."""
    (shell.cwd / name).write_text(FILES[name])
    said = shell(*words, "cluster=local", f"sweep.points={name}", "--", "true")
    for secret in (WORD, KEYED, "Zq7"):
        assert secret not in said.out + said.err, said.err
    if said.code and "--cfg" not in words:
        assert f"{name}, line" in said.err
        assert "env" in said.err or name in ("alias.yaml", "tag.yaml")


@pytest.mark.parametrize("name", ["open.csv", "several.csv"])
def test_security_points_are_found_by_the_user(shell: Any, name: str) -> None:
    """The message for a secret that cannot be read has the file, its line and the key."""
    (shell.cwd / name).write_text(FILES[name])
    words = ("cluster=local", f"sweep.points={name}", "--", "true")
    said = shell("launch", "-m", "--dry-run", *words)
    assert said.code == 2
    line = 3 if name == "open.csv" else 2
    assert f"{name}, line {line}: +env.MY_PASSWORD=*** is not a valid value of a point" in said.err
