"""`hpckit plan` as its verb runs it: what it prints, as text, in one line, or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_world import make_context

from hpckit.cli.main import build_verb_parser
from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.features.capacity.verb import run

SMALL = ("--model", "gpt2", "--gpu", "A100-80")
LLAMA = ("--model", "llama3-8b", "--gpu", "H100-SXM", "--gpus", "16")
SHARDED = (*LLAMA, "--parallel", "shard=16")
SEARCH = ("--model", "llama3-70b", "--gpu", "H100-SXM", "--gpus", "64", "--search")
LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def context(folder: Path | None = None) -> Context:
    """Return an invocation whose output is kept."""
    return make_context(folder or Path.cwd())


def said(*words: str, folder: Path | None = None) -> str:
    """Return what `hpckit plan` prints."""
    used = context(folder)
    assert run(build_verb_parser("plan").parse_intermixed_args([*words]), used) == 0
    return used.stdout.getvalue()  # type: ignore[attr-defined,no-any-return]


def flat(*words: str, folder: Path | None = None) -> str:
    """Return what is printed as one line, and a command as one that was pasted."""
    return " ".join(said(*words, folder=folder).replace("\\\n", " ").split())


def planned(*words: str, folder: Path | None = None) -> dict[str, Any]:
    """Return what `--json` says."""
    found: dict[str, Any] = json.loads(said(*words, "--json", folder=folder))
    return found


def refused(*words: str, folder: Path | None = None) -> str:
    """Return the error and its hint: one that says what to do, with exit code 2."""
    with pytest.raises(HpckitError) as error:
        said(*words, folder=folder)
    assert error.value.hint
    assert error.value.exit_code == 2
    return f"{error.value.message}; {error.value.hint}"
