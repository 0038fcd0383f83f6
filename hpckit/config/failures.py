"""The exceptions of Hydra and OmegaConf, and the one useful line in their messages."""

from __future__ import annotations

from hydra.errors import HydraException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from hpckit.errors import iterate_error_causes

# Hydra's own errors, and the plain Python ones that it lets through for odd files and values.
FAILURES = (
    HydraException,
    OmegaConfBaseException,
    YAMLError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    AssertionError,
    UserWarning,
)

NOT_LISTED = "No match in the defaults list"
"""What Hydra says of a choice in a group that no defaults list names."""

_NO_SUCH_KEY = ("does not exist", NOT_LISTED)


def first_error_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().removesuffix(".")


def find_omegaconf_error(error: BaseException) -> OmegaConfBaseException | None:
    """Return the OmegaConf error inside, which knows the key and the value."""
    found = (link for link in iterate_error_causes(error) if isinstance(link, OmegaConfBaseException))
    return next(found, None)


def most_specific_error_line(error: BaseException) -> str:
    """Return OmegaConf's line if there is one, else the error's own."""
    return first_error_line(find_omegaconf_error(error) or error)


def is_unknown_key_error(error: BaseException) -> bool:
    """Return whether the failure is a key or a group that does not exist."""
    if any(isinstance(link, ConfigKeyError | ConfigAttributeError) for link in iterate_error_causes(error)):
        return True
    return any(words in str(error) for words in _NO_SUCH_KEY)
