"""An option that takes one value, and is refused if it is given again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

_GIVEN = "_given_once"


class Once(argparse.Action):
    """Stores a value; an option that is given a second time is refused, with both values.

    `parser.register("action", None, Once)` makes it the action of all arguments that name none.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Keep the value; raises ArgumentError."""
        del parser
        given: set[str] = getattr(namespace, _GIVEN, set())
        if option_string is not None and self.dest in given:
            before = getattr(namespace, self.dest)
            raise argparse.ArgumentError(
                self, f"is given twice, as {before} and {values}: give it once"
            )
        setattr(namespace, _GIVEN, given | {self.dest})
        setattr(namespace, self.dest, values)
