"""The random generators that user code draws from: `random`, numpy, and torch on each device.

Wherever hpckit calls user code more often than the training does, or seeds it, it goes through
here, so that no generator is left out. Generators of the user's own are kept where they are found.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hpckit.model.parallel.sample_order import hash_numbers

try:
    # Early: its state comes from the system when it is imported, and would be missed until then.
    import numpy.random as numpy_random
except ImportError:
    numpy_random = None  # type: ignore[assignment]  # torch works without it

OWN_GENERATORS: tuple[type, ...] = (random.Random, torch.Generator)
"""What user code may make for itself."""
if numpy_random is not None:
    OWN_GENERATORS += (numpy_random.Generator, numpy_random.RandomState)

GeneratorState = Sequence[tuple[Callable[[Any], Any], Any]]
"""What sets each generator, and to what."""


def capture_generator_states(own: Iterable[Any] = ()) -> GeneratorState:
    """Return where all generators are now, and these of the user's own."""
    state: list[Any] = [(random.setstate, random.getstate())]
    if numpy_random is not None:
        state.append((numpy_random.set_state, numpy_random.get_state()))
    return state + [
        _get_generator_setter_and_state(generator) for generator in (*_list_torch_generators(), *own)
    ]


@contextmanager
def preserve_generators(
    own: Iterable[Any] = (), *, seed: int | None = None, begin: GeneratorState = ()
) -> Iterator[None]:
    """Leave all generators as they were before; within, they begin with a seed or another state.

    What is called within must not be lazy: the body of a generator function runs later.
    """
    before, known = capture_generator_states(own), len(_list_torch_generators())
    if seed is not None:
        seed_random_generators_in_use(seed)
    for put, value in begin:
        put(value)
    try:
        yield
    finally:
        for put, value in before:
            put(value)
        for generator in _list_torch_generators()[known:]:  # of devices that were first used within
            generator.manual_seed(generator.initial_seed())


def seed_random_generators_in_use(seed: int) -> None:
    """Seed all generators of devices that are in use."""
    random.seed(seed)
    if numpy_random is not None:
        numpy_random.seed(seed % 2**32)
    for generator in _list_torch_generators():
        generator.manual_seed(seed)


def seed_generators_for_sample(seed: int, number: int) -> None:
    """Seed them for the sample of this number."""
    seed_random_generators_in_use(hash_numbers(seed, number))


def seed_all_generators(seed: int) -> None:
    """Seed all generators, also of devices that are not in use yet."""
    torch.manual_seed(seed)
    seed_random_generators_in_use(seed)


def derive_seed(seed: int, name: str) -> int:
    """Return a seed of 63 bits that follows from another one and a name."""
    found = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(found, "big") >> 1


def state_dict(own: Iterable[Any] = ()) -> dict[str, Any]:
    """Return what a checkpoint keeps of this rank's generators, and of these of the user's own.

    Of those of devices, the current one's.
    """
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if numpy_random is not None:
        states["numpy"] = numpy_random.get_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    if kept := tuple(_get_generator_setter_and_state(generator)[1] for generator in own):
        states["own"] = kept
    return states


def load_state_dict(states: dict[str, Any], own: Iterable[Any] = ()) -> None:
    """Set all generators whose states were kept; `own` are the same as then, in the same order."""
    for generator, kept in zip(own, states.get("own", ()), strict=False):
        _get_generator_setter_and_state(generator)[0](kept)
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states and numpy_random is not None:
        numpy_random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _list_torch_generators() -> list[torch.Generator]:
    """Return torch's own generators: of the host, and of all devices once one is in use."""
    used = [backend for backend in (torch.cuda, torch.xpu) if backend.is_initialized()]
    return [torch.default_generator, *(generator for part in used for generator in part.default_generators)]


def _get_generator_setter_and_state(one: Any) -> tuple[Callable[[Any], Any], Any]:
    if isinstance(one, random.Random):
        return one.setstate, one.getstate()
    bits = getattr(one, "bit_generator", None)
    if bits is not None:
        return lambda state: setattr(bits, "state", state), bits.state
    return one.set_state, one.get_state()
