"""Finds what a user's template holds and no script will: it extends another template.

Of a template that extends another one, Jinja prints what stands before `extends`, and the blocks
that the other one has. Everything else is lost without a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

import jinja2
from jinja2 import nodes

from hpckit.errors import TemplateError
from hpckit.values import dataclass

_CONTROL = (nodes.If, nodes.For, nodes.With, nodes.FilterBlock, nodes.Scope)
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateBlocks:
    """The templates of a script; `names` are variables that name a template to extend."""

    environment: jinja2.Environment
    names: Mapping[str, str]

    def check_template(self, name: str) -> None:
        """Check a template, and those that it extends.

        Raises TemplateError for what would be lost, and jinja2's errors for a template that is
        missing or malformed. A template whose parent only its code can say is not checked.
        """
        seen: set[str] = set()
        while name not in seen:
            seen.add(name)
            tree = self._parse_template(name)
            extended = self._find_parent_template(tree)
            if extended is None:
                return
            known = self._list_known_blocks(extended, {name})
            if known is not None:
                _check_template_body(
                    _body_after_extends(tree), name, extended, known | _list_self_printed_blocks(tree)
                )
            name = extended

    def _parse_template(self, name: str) -> nodes.Template:
        assert self.environment.loader is not None  # noqa: S101  # our environments have one
        source, file, _ = self.environment.loader.get_source(self.environment, name)
        return self.environment.parse(source, name, file)

    def _find_parent_template(self, tree: nodes.Template) -> str | None:
        """Return the template that this one always extends; None if it is none, or not known."""
        extends = next((node for node in tree.body if isinstance(node, nodes.Extends)), None)
        if extends is None:
            return None
        if isinstance(extends.template, nodes.Const):
            return str(extends.template.value)
        named = extends.template
        return self.names.get(named.name) if isinstance(named, nodes.Name) else None

    def _list_known_blocks(self, name: str, seen: set[str]) -> frozenset[str] | None:
        if name in seen:
            return frozenset()
        seen.add(name)
        tree = self._parse_template(name)
        own = frozenset(block.name for block in tree.find_all(nodes.Block))
        extended = self._find_parent_template(tree)
        if extended is None:
            return None if tree.find(nodes.Extends) else own
        others = self._list_known_blocks(extended, seen)
        return None if others is None else own | others


def _body_after_extends(tree: nodes.Template) -> Sequence[nodes.Node]:
    """Return the body after `extends`: what comes before it is printed."""
    place = next(n for n, one in enumerate(tree.body) if isinstance(one, nodes.Extends))
    return tree.body[place + 1 :]


def _list_self_printed_blocks(tree: nodes.Template) -> frozenset[str]:
    """Return the blocks that a template prints itself, as in `{{ self.mine() }}`."""
    return frozenset(
        node.attr
        for node in tree.find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == "self"
    )


def _check_template_body(body: Sequence[nodes.Node], name: str, extended: str, known: frozenset[str]) -> None:
    for node in _walk_output_nodes(body):
        if isinstance(node, nodes.Block):
            if node.name not in known:
                raise _build_unknown_block_error(node, name, extended, known)
        elif text := _describe_lost_output(node):
            raise TemplateError(
                f"line {node.lineno} of {name}: {text!r} is outside of all blocks, so that it "
                "would not be in the script",
                hint="put it into a block: {% block setup %}{{ super() }}…{% endblock %}",
            )


def _walk_output_nodes(body: Sequence[nodes.Node]) -> Iterator[nodes.Node]:
    """Yield blocks and output, also those within control structures; not what is in a block."""
    for node in body:
        if isinstance(node, _CONTROL):
            inner = [child for child in node.iter_child_nodes() if isinstance(child, nodes.Stmt)]
            yield from _walk_output_nodes(inner)
        elif isinstance(node, nodes.Output):
            yield from node.nodes
        else:
            yield node


def _describe_lost_output(node: nodes.Node) -> str:
    """Return what a node would print, shortened; empty if nothing."""
    if isinstance(node, nodes.TemplateData):
        lines = node.data.strip().splitlines()
        return lines[0][:_SHOWN] if lines else ""
    if isinstance(node, nodes.Include):
        return "an include"
    return "an expression" if isinstance(node, nodes.Expr | nodes.CallBlock) else ""


def _build_unknown_block_error(
    block: nodes.Block, name: str, extended: str, known: frozenset[str]
) -> TemplateError:
    near = get_close_matches(block.name, known, n=1)
    return TemplateError(
        f"line {block.lineno} of {name}: {extended} has no block {block.name}, so that none of "
        "it would be in the script",
        hint=f"{f'did you mean {near[0]}? ' if near else ''}Blocks are {', '.join(sorted(known)) or 'none'}",
    )
