"""A state that is saved and restored, for tests that look at what becomes of it."""

from __future__ import annotations

from typing import Any

import torch


class Values:
    """A state of one tensor and one number, unless it is given."""

    def __init__(
        self, number: int = 0, refused: frozenset[int] = frozenset(), state: dict[str, Any] | None = None
    ) -> None:
        usual = {"tensor": torch.full((50,), float(number)), "number": number}
        self.state: dict[str, Any] = usual if state is None else state
        self.refused = refused

    def state_dict(self) -> dict[str, Any]:
        """Return the values."""
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the values, unless their number is refused."""
        if state.get("number") in self.refused:
            raise KeyError("refused")
        self.state = state
