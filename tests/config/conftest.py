"""Makes requests as a user would: words, a working directory, an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hpckit.config.request import ComposeRequest

Requester = Callable[..., ComposeRequest]
Writer = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def request_for(tmp_path: Path) -> Requester:
    """Return a maker of requests: overrides, and fields of the request as keywords."""

    def make(*overrides: str, **fields: Any) -> ComposeRequest:
        values = {"environ": {}, "cwd": tmp_path, **fields}
        return ComposeRequest(overrides=overrides, **values)

    return make


@pytest.fixture
def write_conf(tmp_path: Path) -> Writer:
    """Return a writer of the user's ./conf: relative file name to text."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            file = tmp_path / "conf" / f"{name}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return tmp_path / "conf"

    return write
