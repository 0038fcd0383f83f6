"""Finds blocks of a user's template that nothing prints, as the template it extends has none."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

import jinja2
from jinja2 import nodes

from hpckit.errors import TemplateError


def check_blocks(environment: jinja2.Environment, name: str) -> None:
    """Check the blocks of a template, and of those that it extends by name.

    Raises TemplateError for a block that the extended template lacks, and jinja2's errors for a
    template that is missing or malformed.
    """
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        tree = _parsed(environment, name)
        extended = _extended(tree)
        if extended is None:
            return
        _check_outside(tree, name)
        known = set(_blocks(environment, extended, {name}))
        for block in tree.find_all(nodes.Block):
            # A block within another one is printed by that.
            if block in tree.body and block.name not in known:
                near = get_close_matches(block.name, known, n=1)
                raise TemplateError(
                    f"line {block.lineno} of {name}: {extended} has no block {block.name}, "
                    "so that nothing of it would be in the script",
                    hint=f"{f'did you mean {near[0]}? ' if near else ''}Blocks are "
                    f"{', '.join(sorted(known))}",
                )
        name = extended


def _check_outside(tree: nodes.Template, name: str) -> None:
    """Raise TemplateError for text outside of blocks, which a template that extends drops."""
    for node in tree.body:
        for one in node.nodes if isinstance(node, nodes.Output) else ():
            if not isinstance(one, nodes.TemplateData) or one.data.strip():
                text = one.data.strip() if isinstance(one, nodes.TemplateData) else "an expression"
                raise TemplateError(
                    f"line {one.lineno} of {name}: {text.splitlines()[0][:60]!r} stands outside of "
                    "blocks, so that it would not be in the script",
                    hint="put it into a block: {% block setup %}{{ super() }}…{% endblock %}",
                )


def _parsed(environment: jinja2.Environment, name: str) -> nodes.Template:
    assert environment.loader is not None  # noqa: S101  # our environments have one
    source, file, _ = environment.loader.get_source(environment, name)
    return environment.parse(source, name, file)


def _extended(tree: nodes.Template) -> str | None:
    """Return the template that this one extends; None if none, or one that a variable names."""
    extends = tree.find(nodes.Extends)
    if extends is None or not isinstance(extends.template, nodes.Const):
        return None
    return str(extends.template.value)


def _blocks(environment: jinja2.Environment, name: str, seen: set[str]) -> Iterator[str]:
    """Yield the blocks of a template and of those that it extends."""
    if name in seen:
        return
    seen.add(name)
    tree = _parsed(environment, name)
    yield from (one.name for one in tree.find_all(nodes.Block))
    extended = _extended(tree)
    if extended is not None:
        yield from _blocks(environment, extended, seen)
