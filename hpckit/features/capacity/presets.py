"""Published models by name, and models from a configuration file of Hugging Face. Pure.

The published ones are in models.toml, with their sources.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hpckit.errors import ConfigError
from hpckit.features.capacity.model_transformer import TransformerShape
from hpckit.patterns import lazy_pattern

_OF_LLAMA: dict[str, Any] = {
    **dict.fromkeys(("tied", "biases", "dropout"), False),
    "swiglu": True,
    "positions": 0,
}
_FAMILIES = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
_OF_FAMILY: dict[str, dict[str, Any]] = {"gpt": {"vocab": 50257}, "llama": _OF_LLAMA}
MODELS = {
    name: TransformerShape(**_OF_FAMILY[family] | numbers)
    for family, models in _FAMILIES.items()
    for name, numbers in models.items()
}


def build_unknown_model_error(name: str) -> ConfigError:
    """Return the error for a name that no model has, with those that are nearly it."""
    if _SIZE.fullmatch(name):
        return ConfigError(
            f"model {name!r} is a number, not a name",
            hint=f"if only the size of the model is known: --model parameters={name}; only its "
            "states follow from it",
        )
    last = re.sub(r"[-_](hf|base|chat|instruct|v[0-9.]+)$", "", name.rpartition("/")[2].lower())
    near = suggest_near_names(last, MODELS)
    of_hub = "; a model on a hub is not downloaded: give the file config.json of it"
    return ConfigError(
        f"model {name!r} is not known{near}",
        hint=f"known are {', '.join(MODELS)}; or a config.json, or numbers: "
        f"--model 'hidden=4096 layers=32 heads=32'{of_hub if '/' in name else ''}",
    )


_SIZE = lazy_pattern(r"[0-9]+\.?[0-9]*(e\+?[0-9]{1,3})?[KMBT]?", re.IGNORECASE)


def suggest_near_names(name: str, known: Iterable[str]) -> str:
    """Return a question after the names that are meant, such as `: H100-SXM or H100-PCIe?`.

    Capitals and `-`, `_`, `.` do not matter, and a name may be left off in the middle.
    """
    plain = {one: re.sub(r"[^a-z0-9]", "", one.lower()) for one in known}
    said = re.sub(r"[^a-z0-9]", "", name.lower())
    found = [one for one, short in plain.items() if said and short.startswith(said)]
    if not found:
        near = get_close_matches(said, plain.values(), n=2, cutoff=0.75)
        found = [one for one, short in plain.items() if short in near]
    return f": did you mean {' or '.join(found[:3])}?" if found else ""


_SHOWN = 80
_LLAMA_LIKE = ("llama", "mistral", "mixtral", "qwen2", "qwen3")


def parse_huggingface_config(config: Mapping[str, Any]) -> TransformerShape:
    """Return the shape that a Hugging Face `config.json` describes; raises ConfigError.

    Understands the model types gpt2, llama, mistral, mixtral, qwen2 and qwen3.
    """
    kind = config.get("model_type")
    if kind is None:
        raise ConfigError(
            "model: the file has no model_type, so it is not the config.json of a model",
            hint=f"known types are gpt2, {', '.join(_LLAMA_LIKE)}; or give numbers: "
            "--model 'hidden=4096 layers=32 heads=32'",
        )
    is_gpt = kind == "gpt2"
    pairs = (_GPT_KEYS if is_gpt else _LLAMA_KEYS).split()
    keys = dict(pair.split("=") for pair in pairs)
    _refuse_misspelled_keys(config, (*keys.values(), *(() if is_gpt else ("tie_word_embeddings",))))
    if is_gpt:
        return TransformerShape(
            **_read_config_numbers(config, keys, {"ffn": 0}),
            tied=_read_config_switch(config, "tie_word_embeddings", default=True),
            dropout=any(config.get(key, 0.1) for key in ("resid_pdrop", "attn_pdrop")),
        )
    if kind not in _LLAMA_LIKE:
        raise ConfigError(
            f"model: model_type={_shorten_value(kind)} is not known",
            hint=f"known are gpt2, {', '.join(_LLAMA_LIKE)}; give others by numbers: "
            "--model 'hidden=4096 layers=32 heads=32 kv_heads=8 ffn=14336 vocab=32000 swiglu=true'",
        )
    usual = {"head_dim": 0, "experts": 1, "active_experts": 1, "max_sequence": 0}
    usual["kv_heads"] = config.get(keys["heads"], 0)
    return TransformerShape(
        **_OF_LLAMA
        | _read_config_numbers(config, keys, usual)
        | {
            "tied": _read_config_switch(config, "tie_word_embeddings", default=False),
            "query_biases": kind == "qwen2" or _read_config_switch(config, "attention_bias", default=False),
            "head_norms": kind == "qwen3",
        }
    )


def _shorten_value(value: object) -> str:
    """Return a value for an error: a file may hold one of millions of characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _refuse_misspelled_keys(config: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise ConfigError for a key that is nearly one that is missing: it would be left out."""
    for key in keys:
        near = () if key in config else get_close_matches(key, map(str, config), n=1, cutoff=0.92)
        if near and near[0] not in keys:
            raise ConfigError(
                f"model: {near[0]} is not a key of a config.json: did you mean {key}?",
                hint=f"write {key} in the file",
            )


_GPT_KEYS = "hidden=n_embd layers=n_layer heads=n_head positions=n_positions vocab=vocab_size ffn=n_inner"
_LLAMA_KEYS = (
    "heads=num_attention_heads hidden=hidden_size layers=num_hidden_layers vocab=vocab_size "
    "kv_heads=num_key_value_heads ffn=intermediate_size head_dim=head_dim "
    "experts=num_local_experts active_experts=num_experts_per_tok "
    "max_sequence=max_position_embeddings"
)
"""Numbers of a shape, each with its key in the file."""


def _read_config_numbers(
    config: Mapping[str, Any], keys: Mapping[str, str], usual: Mapping[str, int]
) -> dict[str, Any]:
    """Return the numbers of a shape by their keys in the file; `usual` are those that may lack."""
    found: dict[str, Any] = {}
    for name, key in keys.items():
        value = config.get(key)
        found[name] = usual.get(name) if value is None else value
        if not isinstance(found[name], int) or isinstance(found[name], bool):
            wrong = f"={_shorten_value(value)} is not a whole number" if key in config else " is missing"
            hint = f"the model's config.json has to have {key}"
            raise ConfigError(f"model: {key}{wrong}", hint=hint)
    return found


def _read_config_switch(config: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(
            f"model: {key}={_shorten_value(value)} is neither true nor false",
            hint=f"write {key} as JSON does: true or false, without quotes",
        )
    return value


_NUMBERS = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "positions")
_WHOLE = lazy_pattern(r"[0-9]{1,12}")
_MORE_NUMBERS = ("experts", "active_experts")
_SWITCHES = ("tied", "swiglu", "biases", "dropout", "query_biases", "head_norms")


def parse_model_dimensions(text: str, positions: int | None = None) -> TransformerShape:
    """Return the shape of words such as `hidden=768 layers=12 heads=12`; raises ConfigError.

    A model with swiglu has neither biases nor learned positions unless it says so; others have
    `positions` of them. Dropout is assumed of a model with biases.
    """
    given: dict[str, Any] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name in given:
            raise ConfigError(f"model: {name} is given twice", hint="give each number once")
        given[name] = _parse_model_value(name, value)
    missing = [name for name in ("hidden", "layers", "heads") if name not in given]
    if missing:
        raise ConfigError(
            f"model: {' and '.join(missing)} is missing in {text!r}",
            hint="for example --model 'hidden=4096 layers=32 heads=32'",
        )
    if given.get("swiglu"):
        given = {"biases": False, "positions": 0} | given
    elif positions is not None:
        given = {"positions": positions} | given
    return TransformerShape(**{"dropout": given.get("biases", True)} | given)


def _parse_model_value(name: str, value: str) -> int | bool:
    if name in _SWITCHES and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if name in (*_NUMBERS, *_MORE_NUMBERS) and _WHOLE.fullmatch(value):
        return int(value)
    if name in _SWITCHES:
        raise ConfigError(f"model: {name}={value!r}", hint=f"{name} takes true or false")
    if name in (*_NUMBERS, *_MORE_NUMBERS):
        raise ConfigError(f"model: {name}={value!r}", hint=f"{name} takes a whole number of up to 12 digits")
    if name.lower() in MODELS:
        raise ConfigError(
            f"model: {name} is a published model, and takes no numbers",
            hint="name it alone, or give all numbers of yours: --model 'hidden=4096 layers=32 heads=32'",
        )
    raise ConfigError(
        f"model: {name!r} is not a known number of a model",
        hint=f"known are {', '.join((*_NUMBERS, *_MORE_NUMBERS, *_SWITCHES))}",
    )
