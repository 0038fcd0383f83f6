"""Options with a value that may be left out, in front of a positional word."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any


class OptionalValue(argparse.Action):
    """An option that may have a value: the next word only if `takes` accepts it.

    argparse would take any next word, also the LAUNCH in `--watch LAUNCH`.
    """

    def __init__(
        self, option_strings: Sequence[str], dest: str, takes: Callable[[str], bool], **given: Any
    ) -> None:
        super().__init__(option_strings, dest, nargs="?", **given)
        self.takes = takes

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  # argparse's interface
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,  # noqa: ARG002  # argparse's interface
    ) -> None:
        """Keep the value, as argparse's own `store` does."""
        setattr(namespace, self.dest, values)
