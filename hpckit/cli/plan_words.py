"""What words of `hpckit plan` do not go together, and the file of the model that it is given."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.planning.capacity.presets import MODELS, unknown_model
from hpckit.record.store import open_plain

_LARGEST_CONFIG = 4_000_000
_NUMBER_WORD = re.compile(r"[KMBT]|thousand|million|billion|trillion", re.IGNORECASE)
_SHAPE_WORD = re.compile(r"(layers|heads|kv_heads|head_dim|ffn|vocab|swiglu|positions)=\S+")
_GPU_WORD = re.compile(r"[a-z0-9_]+_(gib|per_s|w|per_link|fp32)=\S+|tflops=\S+")
_OF_SHAPES = (
    *("model", "parallel", "global_batch", "micro_batch", "sequence", "vocab", "precision"),
    *("recompute", "attention", "zero", "step_s", "measured", "tokens", "search", "power"),
)
"""Options that need a transformer's shape, or that an experiment says itself."""
_OF_TIMES = ("price_per_gpu_hour", "carbon_g_per_kwh")
_OF_PLANS = (*(one for one in _OF_SHAPES if one != "power"), *_OF_TIMES)
_CLUSTER = re.compile(r"\+{0,2}cluster[.=]")
_RANKS = ("resources.nodes=", "resources.tasks_per_node=", "resources.gpus_per_node=")


def option_name(name: str) -> str:
    """Return the option of an argument: `--from` for `measured`."""
    return "--from" if name == "measured" else f"--{name.replace('_', '-')}"


def given(arguments: argparse.Namespace, names: tuple[str, ...]) -> Iterator[str]:
    """Yield those of these arguments that were given."""
    values = {name: getattr(arguments, name) for name in names}
    # 0 is a value that may have been given, and equals False.
    return (
        one
        for one, value in values.items()
        if value is not None and value is not False and value != []
    )


def check_together(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options that say nothing beside the others."""
    words = arguments.overrides
    if words and not only_of_cluster(words):
        _check_slips(arguments, words)
        _check_experiment(arguments, words)
    elif arguments.power:
        for name in given(arguments, _OF_PLANS):
            raise UsageError(
                f"{option_name(name)} does not go with --power, which is power alone",
                hint="leave one of the two out: the plan of a model says its power, too",
            )
    elif arguments.model is None:
        raise UsageError("--model is missing", hint="name a model; --power alone needs none")


def only_of_cluster(words: Sequence[str]) -> bool:
    """Return whether words choose a cluster and nothing else: a model may stand beside them."""
    return bool(words) and all(_CLUSTER.match(word) for word in words)


def _check_slips(arguments: argparse.Namespace, words: list[str]) -> None:
    """Raise UsageError for a word that was cut off an option's value by a space."""
    if arguments.tokens is not None and _NUMBER_WORD.fullmatch(words[0]):
        raise UsageError(
            f"--tokens {arguments.tokens} {words[0]} are two words",
            hint=f"write number and suffix as one: --tokens {arguments.tokens}"
            f"{words[0][0].upper()}",
        )
    if arguments.model is None and words[0].lower() in MODELS:
        raise UsageError(
            f"{words[0]} is a model, and no word of a configuration",
            hint=f"name it with an option: hpckit plan --model {words[0]} --gpu NAME --gpus N",
        )
    if arguments.gpu is not None and _GPU_WORD.fullmatch(words[0]):
        numbers = " ".join([arguments.gpu, *words])
        raise UsageError(
            f"{words[0]} is not a part of --gpu, which is one word",
            hint=f"put the numbers in quotes: --gpu '{numbers}'",
        )
    if "=" in (arguments.model or "") and _SHAPE_WORD.fullmatch(words[0]):
        numbers = " ".join([arguments.model, *words])
        raise UsageError(
            f"{words[0]} is not a part of --model, which is one word",
            hint=f"put the numbers in quotes: --model '{numbers}'",
        )


def _check_experiment(arguments: argparse.Namespace, every: list[str]) -> None:
    words = [one for one in every if not _CLUSTER.match(one)]
    for name in given(arguments, _OF_SHAPES):
        raise UsageError(
            f"{option_name(name)} does not go with {words[0]}: the "
            "experiment says what its model and its layout are",
            hint="leave it out, or describe the model with --model instead of an experiment",
        )
    for name in given(arguments, _OF_TIMES):
        raise UsageError(
            f"{option_name(name)} does not go with {words[0]}: of a model that is counted, states "
            "are known and the time is not",
            hint="leave it out, or describe the model with --model instead of an experiment",
        )
    ranks = [one for one in words if one.startswith(_RANKS)]
    if arguments.gpus is not None and ranks:
        raise UsageError(
            f"--gpus {arguments.gpus} and {ranks[0]} both say how many ranks there are",
            hint="give one of them",
        )


def read_config(model: str, context: Context) -> dict[str, Any] | None:
    """Return what a model's configuration file says, if a file is meant; raises HpckitError.

    A folder is one that has a config.json.
    """
    path = context.cwd / Path(model)
    hint = "name a model's config.json, or the folder that has it"
    if not _names_file(model, path):
        return None
    try:
        path = path / "config.json" if path.is_dir() else path
        with open_plain(path) as file:
            data = file.read(_LARGEST_CONFIG + 1)
    except FileNotFoundError as error:
        if re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not model.endswith(".json"):
            raise unknown_model(model) from error
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path!s:.200} is no path", hint=hint) from error
    if len(data) > _LARGEST_CONFIG:
        raise UsageError(f"{path} is larger than {_LARGEST_CONFIG // 1_000_000} MB", hint=hint)
    return _parsed(path, data, hint)


def _names_file(model: str, path: Path) -> bool:
    if model.endswith(".json") or "/" in model:
        return True
    return "=" not in model and model.lower() not in MODELS and path.is_dir()


def _parsed(path: Path, data: bytes, hint: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply", hint=hint) from error
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path} is no JSON: line {error.lineno}, column {error.colno}: {error.msg}", hint=hint
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON", hint=hint) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is no JSON object", hint=hint)
    return found
