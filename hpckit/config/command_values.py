"""Marks the values in a command, so that each is written for what reads it.

An application with a configuration of its own reads `lr=${params.lr}` in Hydra's grammar once more.
"""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override

from hpckit.config.command_word import is_readable
from hpckit.config.session import register_resolver
from hpckit.errors import ConfigError
from hpckit.model.command import Reader, behind_env, reader_of, written

_RESOLVER = "hpckit.written"
_OPENED = re.compile(r"(\\*)(\$\{)")
_NAME = re.compile(r"\$\{([\w.]+)\}\Z", re.ASCII)


def mark_command(config: DictConfig) -> DictConfig:
    """Mark each interpolation in the command of a composition, in place, and return it.

    Resolving it then raises ConfigError for a null where a text has to be.
    """
    register_resolver(_RESOLVER, _written, replace=True)
    masked: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, "command"))
    given = masked.get("command")
    marked = given
    if isinstance(given, list) and given:
        first = len(given) - len(behind_env([str(word) for word in given]))
        marked = [_marked(word, plain=place < first) for place, word in enumerate(given)]
    elif isinstance(given, str) and not _NAME.match(given):
        marked = _marked(given, listed=False)
    if marked != given:
        with flag_override(config, ["readonly", "struct"], False):  # noqa: FBT003  # its own signature
            config.command = marked
    return config


def _marked(text: Any, *, listed: bool = True, plain: bool = False) -> Any:
    """Return a word, or a whole command, in which the resolver has each interpolation."""
    if not isinstance(text, str):
        return text
    done = begin = 0
    pieces: list[str] = []
    for opened in _OPENED.finditer(text):
        begin = opened.start(2)
        ends = (one.end() for one in re.finditer("}", text) if one.start() > begin)
        end = next((one for one in ends if is_readable(text[begin:one])), None)
        if begin < done or len(opened[1]) % 2 or end is None:
            continue
        inside = text[begin:end]
        reader = reader_of(text[:begin], text[end:], listed=listed)
        name = match[1] if (match := _NAME.match(inside)) else "its value"
        reader = Reader.program if plain else reader
        pieces += [text[done:begin], f'${{{_RESOLVER}:{reader},"{name}",{inside}}}']
        done = end
    return "".join(pieces) + text[done:]


def _written(reader: str, name: str, value: Any) -> Any:
    if value is None and reader == Reader.program:
        raise ConfigError(
            f"{name} is null, and a null has no text",
            hint="Give it a text, or leave the word out. Only a word key=${...} of its own can be "
            "null: Hydra reads key=null.",
        )
    return written(value, Reader(reader))
