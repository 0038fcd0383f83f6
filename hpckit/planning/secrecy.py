"""Which variables look like secrets, by names and values; masks them in words and messages. Pure.

Mistakes in both directions matter: a plain value that is taken for a secret no longer distinguishes runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from hpckit.model.plain import MASK
from hpckit.model.settings import VARIABLE
from hpckit.patterns import lazy_pattern

_ANYWHERE = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY")
"""Parts of a name that mark a secret, at any position."""

_WHOLE = frozenset({VARIABLE})
"""Names that mark a secret as a whole: addresses of notices."""

_WORDS = frozenset({"AUTH", "PAT", "PASS"})
_KEYS = frozenset(
    {"API", "ACCESS", "PRIVATE", "ENCRYPTION", "SIGNING", "SSH", "DEPLOY", "ACCOUNT", "STORAGE"}
    | {"SHARED", "MASTER", "KAGGLE", "WANDB"}
)
"""Words that, right before the word KEY, mark a secret."""

_ABOUT = frozenset(
    {"FILE", "PATH", "DIR", "SOCK", "NAME", "TYPE", "METHOD", "MODE", "PLUGIN", "COUNT", "LENGTH"}
    | {"LEN", "LIMIT", "SIZE", "TIMEOUT", "TTL", "HOST", "PORT", "ENDPOINT", "ENABLED", "SERVER"}
    | {"URL"}
)
"""Last words of names that describe a secret and do not hold it."""

_AMOUNTS = frozenset({"MAX", "MIN", "NUM", "N", "PER"})
_NOTHING = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off", "null", "none"})
_NUMBER = lazy_pattern(r"-?\d{1,7}(\.\d+)?\Z")
_SPECIAL = lazy_pattern(r"<\S+>\Z|\[\S+\]\Z")
"""A token of a text model, such as <pad> or [CLS]."""

_REFERENCE = lazy_pattern(r"\$\{[\w.:\[\]]+\}\Z|\?\?\?\Z")
"""An unresolved interpolation without a default."""

_LONG_ENOUGH = 8
"""Shorter values of the launching shell are not searched for in others: they occur in too many."""

_MIXED = r"(?=[\w-]*[0-9A-Z])"
_TOKEN = (
    rf"hf_{_MIXED}[A-Za-z0-9]{{8,}}|sk-{_MIXED}[\w-]{{8,}}|gh[pousr]_[A-Za-z0-9]{{8,}}"
    r"|github_pat_\w{8,}|glpat-[\w-]{8,}|(?:AKIA|ASIA)[0-9A-Z]{12,}|xox[a-z]-[\w-]{8,}"
    r"|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|dckr_pat_[\w-]{8,}|nvapi-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+"
)
TOKENS = lazy_pattern(rf"(?<![A-Za-z0-9_-])(?:{_TOKEN})")
"""Texts that well-known services issue as keys, inside any other text."""

_VALUE = lazy_pattern(
    r"-----BEGIN |[A-Za-z][\w+.-]*://[^/\s:@]*:[^/\s@]+@|(?:Bearer|Basic)\s+\S{8,}"
    r"|https://hooks\.slack\.com/services/\S|AccountKey=\S"
)


_WORD = lazy_pattern(
    r"(?P<head>(?:[A-Za-z_]\w*:)?[+~]*(?P<section>(?:cluster\.)?env)(?:\.(?P<name>\w+))?)="
    r"(?P<value>.*)\Z",
    re.DOTALL,
)
_ASSIGNED = lazy_pattern(r"\b((?:cluster\.)?env\.(\w+))=('[^']*'|\"[^\"]*\"|[^\s'\"]*[^\s'\",:;.)])")
_NAME_IN_MAPPING = lazy_pattern(r"(\w+)['\"]?\s*:")
SEARCHED_FROM = 8
"""Shorter secrets are not searched for in stored text: they occur in too many words."""

_IN_A_MESSAGE = 4


@lru_cache(maxsize=1024)  # the points of a sweep share most of their variables
def is_secret_variable(name: str, value: str, known: frozenset[str] = frozenset()) -> bool:
    """Whether a variable of this name, with this value, looks like a secret.

    `known` are secrets with other names, such as those of the launching shell: a value that
    contains one of them is a secret, too.
    """
    if value.strip().lower() in _NOTHING or _REFERENCE.match(value):
        return False
    if TOKENS.search(value) or _VALUE.search(value):
        return True
    return is_secret_name(name, value) or any(text in value for text in known)


def is_secret_name(name: str, value: str = "") -> bool:
    """Whether a variable's name says that it holds a secret; for some names the value decides."""
    text = name.upper()
    words = [word for word in re.split(r"[^A-Z0-9]+", text) if word]
    if text in _WHOLE:
        return True
    if not words or words[-1] in _ABOUT:
        return False
    key = any(one in _KEYS and two == "KEY" for one, two in pairwise(words))
    if key or any(part in text for part in _ANYWHERE):
        return True
    if words[-1] in ("ID", "IDS") or _AMOUNTS.intersection(words) or _NUMBER.match(value):
        return False
    return (
        not _WORDS.isdisjoint(words)
        or "PWD" in words[1:]
        or (any(word.endswith("TOKEN") for word in words) and not _SPECIAL.match(value))
    )


def find_secrets_in_environment(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the secrets of an environment that are long enough to be recognised."""
    return frozenset(
        value
        for name, value in environ.items()
        if len(value) >= _LONG_ENOUGH and is_secret_variable(name, value)
    )


def mask_command_line(words: Sequence[str], secrets: Collection[str] = ()) -> tuple[str, ...]:
    """Return words of a command line without the secrets that overrides in them set.

    `secrets` are known secret values.
    """
    return tuple(_mask_known_secrets(mask_override(word), secrets) for word in words)


@lru_cache(maxsize=1024)  # the points of a sweep share most of their words
def mask_override(word: str) -> str:
    """Return an override without the secret that it sets: `env.HF_TOKEN=***`."""
    found = _WORD.match(word)
    if found is None:
        return word
    name, value = found["name"], found["value"]
    if name is None:
        inside = _NAME_IN_MAPPING.findall(value)
        secret = is_secret_variable("", value) or any(is_secret_name(name) for name in inside)
    else:
        secret = is_secret_variable(name, value.strip("'\""))
    return f"{found['head']}={MASK}" if secret else word


def mask_message(text: str, words: Sequence[str], known: Collection[str] = ()) -> str:
    """Return a message without the secrets that `words` of a command line set, and without keys.

    `known` are secrets of the environment.
    """
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, mask_override(word))
    text = _mask_known_secrets(
        text, {part for word in words for part in _list_secrets_in_override(word)}, _IN_A_MESSAGE
    )
    text = _mask_known_secrets(text, known)
    return TOKENS.sub(MASK, _ASSIGNED.sub(_mask_assignment, text))


def _mask_assignment(found: re.Match[str]) -> str:
    secret = is_secret_variable(found[2], found[3].strip("'\""))
    return f"{found[1]}={MASK}" if secret else found[0]


def _list_secrets_in_override(word: str) -> tuple[str, ...]:
    """Return the secret that a word sets, whole and in the parts that a sweep splits it into."""
    if mask_override(word) == word:
        return ()
    value = word.partition("=")[2]
    return (value, *re.split(r"[\s,'\"()\[\]{}:]+", value))


def _mask_known_secrets(text: str, secrets: Collection[str], least: int = SEARCHED_FROM) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= least:
            text = text.replace(secret, MASK)
    return text
