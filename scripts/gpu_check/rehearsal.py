"""A rehearsal without a GPU: NVML's fake stands in the place of the driver's library.

Who has set up a fake already keeps it, with whatever it answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpckit.testing.nvml.fake_nvml import STATE_VARIABLE, FakeNvml


@contextmanager
def rehearsed(folder: Path) -> Iterator[None]:
    """Have all that is started here see one fake, idle H100; a C compiler is needed."""
    if STATE_VARIABLE in os.environ:
        yield
        return
    place = folder / "fake"
    place.mkdir()
    fake = FakeNvml(place)
    fake.build()
    fake.profile("h100")
    fake.load(0, {0: 0})
    before = {name: os.environ.get(name) for name in fake.environ}
    os.environ.update(fake.environ)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
