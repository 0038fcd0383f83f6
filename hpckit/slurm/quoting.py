"""Template filters that quote values for their place in a batch script.

A filter returns `Markup`, and only `Markup` and whole numbers may be printed:
`refuse_unquoted_value` refuses everything else, so that a template cannot forget a filter.

How sbatch reads #SBATCH lines (get_argument in src/sbatch/opt.c, the same in 22.05 and 26.05):
words end at white space and `#`, both kinds of quotes group, and a backslash escapes the next
character everywhere, including inside both kinds of quotes. Nothing is expanded, unlike in a shell.
"""

from __future__ import annotations

import shlex
from typing import Any

from jinja2 import Undefined
from markupsafe import Markup

from hpckit.errors import TemplateError
from hpckit.patterns import lazy_pattern

_PLAIN = lazy_pattern(r"[A-Za-z0-9_@%+=:,./^~\[\]*-]+\Z")
_OPTION = lazy_pattern(r"[a-z][a-z0-9-]*\Z")
_VARIABLE = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CONTROL = lazy_pattern(r"[\x00-\x1f\x7f]")


def quote_for_sbatch(value: object) -> Markup:
    """Quote one value of an #SBATCH line; raises TemplateError for control characters."""
    text = _refuse_control_characters(value, "a value of an #SBATCH line")
    if _PLAIN.match(text):
        return Markup(text)  # noqa: S704  # plain by the pattern above
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return Markup(f'"{escaped}"')  # noqa: S704  # quoted by the rules of sbatch


def quote_for_shell(value: object) -> Markup:
    """Quote one word of a shell command; raises TemplateError for a NUL character."""
    text = str(value)
    if "\x00" in text:
        raise TemplateError(f"{text!r} has a NUL character, which a command cannot contain")
    return Markup(shlex.quote(text))  # noqa: S704  # quoted for a shell


def mark_as_shell_code(value: object) -> Markup:
    """Pass shell code that the user wrote through unchanged."""
    return Markup(str(value))  # noqa: S704  # code by intent


def check_option_name(value: object) -> Markup:
    """Check the name of an sbatch option; raises TemplateError if it is not valid."""
    text = str(value).replace("_", "-")
    if _OPTION.match(text):
        return Markup(text)  # noqa: S704  # harmless by the pattern above
    raise TemplateError(
        f"{value!r} is not the name of an sbatch option; letters, digits and '-' are allowed",
        hint="look at the keys of resources.additional_parameters",
    )


def check_variable_name(value: object) -> Markup:
    """Check the name of an environment variable; raises TemplateError if it is not valid."""
    text = str(value)
    if _VARIABLE.match(text):
        return Markup(text)  # noqa: S704  # harmless by the pattern above
    raise TemplateError(
        f"{value!r} is not the name of an environment variable; letters, digits and '_' are allowed",
        hint="look at the keys of cluster.env",
    )


def refuse_unquoted_value(value: Any) -> Any:
    """Raise TemplateError for values that passed no filter; whole numbers need none."""
    if isinstance(value, Undefined):
        return value  # printing it raises an error that names it
    if hasattr(value, "__html__") or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TemplateError(
        f"the template prints {value!r} without a filter",
        hint="write {{ value | sbatch }} in an #SBATCH line and {{ value | shell }} in a command",
    )


def _refuse_control_characters(value: object, what: str) -> str:
    text = str(value)
    if _CONTROL.search(text):
        raise TemplateError(
            f"{text!r} has a line break or another control character, which {what} cannot have",
            hint="write it on one line",
        )
    return text


FILTERS = {
    "sbatch": quote_for_sbatch,
    "shell": quote_for_shell,
    "verbatim": mark_as_shell_code,
    "option": check_option_name,
    "variable": check_variable_name,
}
"""The filters that a template may use."""
