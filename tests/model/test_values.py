"""A dataclass of ours is one of the standard library's, but for what its import costs."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from hpckit import values

KINDS: dict[str, Any] = {"theirs": dataclasses, "ours": values}
"""The same classes are made of both."""


def made(of: str) -> dict[str, type[Any]]:
    """Return classes that use all that hpckit uses of dataclasses."""
    home = KINDS[of]
    dataclass, field = home.dataclass, home.field

    @dataclass(frozen=True, slots=True, order=True)
    class Pair:
        """Ordered, by position, with a name that is no field."""

        first: int
        second: float | None = None
        kind: ClassVar[str] = "pair"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Base:
        """By name, with a factory, and fields that are hidden, or do not count."""

        name: str
        tags: list[str] = field(default_factory=list, hash=False)
        hidden: str = field(default="", repr=False)
        noise: int = field(default=0, compare=False)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        """With a field of its own, and another default for one of the base's."""

        size: int = 1
        noise: int = 5

        def __str__(self) -> str:
            return f"derived {self.name}"

    @dataclass(slots=True)
    class State:
        """Changes, and completes itself."""

        limit: int
        seen: set[int] = field(default_factory=set, init=False)
        last: int = field(default=-1, init=False)
        half: int = field(init=False)

        def __post_init__(self) -> None:
            self.half = self.limit // 2

    @dataclass(slots=True, eq=False)
    class Apart:
        """Equal to itself alone."""

        number: int

    @dataclass(frozen=True)
    class Open:
        """Without slots."""

        number: int = 3

    @dataclass(frozen=True, slots=True)
    class Nothing:
        """Without fields."""

    classes = (Pair, Base, Derived, State, Apart, Open, Nothing)
    return {process_class.__name__: process_class for process_class in classes}


EXAMPLES = {
    "order": "sorted([Pair(2, 0.5), Pair(1, 3), Pair(1, 2)])",
    "class variable": "Pair.kind, Pair(1).kind",
    "hash": "len({Pair(1), Pair(1), Pair(1, 1)})",
    "not hashed": "hash(Base(name='a', tags=[1])) == hash(Base(name='a'))",
    "equal": "Base(name='a', noise=1) == Base(name='a'), Pair(1) != Pair(1)",
    "not equal": "Base(name='a') == Pair(1), Base(name='a') == Base(name='b')",
    "not a number": "Pair(1, nan) == Pair(1, nan)",
    "other kind": "Base(name='a', hidden='none') == Derived(name='a', size=1)",
    "repr": "Pair(1), Base(name='a', hidden='x'), Derived(name='b', size=2), State(5), Nothing()",
    "str": "str(Derived(name='b', size=2))",
    "factories": "Base(name='a').tags is Base(name='a').tags",
    "order of fields": "[one.name for one in dataclasses.fields(Derived)]",
    "fields": "[(one.name, one.type, one.init) for one in dataclasses.fields(State(1))]",
    "fields by name": "[one.kw_only for kind in (Pair, Base) for one in dataclasses.fields(kind)]",
    "defaults": "[(one.name, one.default) for one in dataclasses.fields(Pair)[1:]]",
    "is one": "dataclasses.is_dataclass(State), dataclasses.is_dataclass(Nothing(),)",
    "asdict": "dataclasses.asdict(Derived(name='b', size=2, tags=['x']))",
    "their replace": "dataclasses.replace(Derived(name='b', size=2), size=3)",
    "replace": "replace(Derived(name='b', size=2), size=3), replace(State(4), limit=6).half",
    "no such field": "replace(Pair(1), third=6)",
    "positions": "Pair.__match_args__, Base.__match_args__, State.__match_args__",
    "too few": "Pair()",
    "too many": "Pair(1, 2, 3)",
    "by position": "Base('a')",
    "frozen": "setattr(Pair(1), 'first', 2)",
    "frozen, no field": "setattr(Open(1), 'other', 2)",
    "cannot be deleted": "delattr(Pair(1), 'first')",
    "slots": "setattr(State(1), 'other', 2)",
    "changes": "(state := State(7), setattr(state, 'last', 3), state)[2]",
    "unhashable": "hash(State(1))",
    "apart": "Apart(1) == Apart(1), len({Apart(1), Apart(1)})",
    "no order": "Base(name='a') < Base(name='b')",
    "copies": "copy.copy(Pair(1)), copy.deepcopy(Base(name='a', tags=['x'])), copy.copy(State(3))",
    "without slots": "copy.copy(Open(4))",
    "signature": "list(inspect.signature(Derived).parameters)",
    "what is kept": "Pair.__doc__, Pair.__qualname__, Pair.__module__, Pair.__init__.__qualname__",
    "params": "Pair.__dataclass_params__.frozen, State.__dataclass_params__.frozen",
    "kinds": "Pair.__hash__ is None, State.__hash__ is None, Derived.__slots__",
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_ours_do_what_the_standard_librarys_do(example: str) -> None:
    """Values, texts and the kinds of errors are the same.

    But for NaN, which the standard library compares in its own way since Python 3.13; ours stay the same.
    """
    if "nan" in example and sys.version_info >= (3, 13):
        assert (told("ours", example), told("theirs", example)) == ("True", "False")
        return
    assert told("ours", example) == told("theirs", example)


def told(of: str, example: str) -> str:
    """Return what an example comes to with these classes: a text, or the kind of an error."""
    known = {"dataclasses": dataclasses, "replace": KINDS[of].replace, "nan": float("nan")}
    try:
        return repr(eval(example, known | made(of) | {"copy": copy, "inspect": inspect}))  # noqa: S307
    except Exception as error:  # noqa: BLE001  # it is the answer
        return type(error).__name__


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """At the top of a module, so that it can be pickled."""

    number: int
    words: tuple[str, ...] = ()


def test_they_are_pickled() -> None:
    """Also frozen ones with slots."""
    one = Sent(number=3, words=("a",))
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301


def test_a_standard_dataclass_may_extend_one_of_ours() -> None:
    """Users' classes do."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Theirs(Sent):
        more: int = 0

    assert Theirs(number=1, more=2) == Theirs(number=1, more=2)
    assert [field.name for field in dataclasses.fields(Theirs)] == ["number", "words", "more"]
    assert values.field_names(Theirs) == ("number", "words", "more")
    assert values.replace(Theirs(number=1, more=2), number=3) == Theirs(number=3, more=2)


def test_names_of_fields_are_known_of_any_type() -> None:
    """Of ours and of the standard library's, with fields or without."""
    names = [values.field_names(kind) for one in KINDS for kind in (made(one)["State"],)]
    assert names == [("limit", "seen", "last", "half")] * 2
    assert not values.is_dataclass(int)
    assert all(values.is_dataclass(made(one)["Nothing"]) for one in KINDS)


def test_a_method_is_compiled_when_it_is_first_needed() -> None:
    """That is why an import is quick; afterwards it is a function like any other."""
    pair = made("ours")["Pair"]
    assert not inspect.isfunction(vars(pair)["__init__"])
    assert pair(1) == pair(1)
    assert inspect.isfunction(vars(pair)["__init__"])
    assert not inspect.isfunction(vars(pair)["__lt__"])


def test_threads_may_look_a_method_up_first_at_the_same_time() -> None:
    """Each finds it, whoever makes it."""
    home: Any = values
    for _ in range(200):

        @home.dataclass(frozen=True, slots=True)
        class Pair:
            first: int
            second: int = 2

        gate = threading.Barrier(4)

        def compare(pair: Any = Pair, gate: threading.Barrier = gate) -> bool:
            gate.wait()
            return bool(pair(1) == pair(1) and hash(pair(1)) == hash(pair(1)))

        with ThreadPoolExecutor(4) as threads:
            assert all(one.result() for one in [threads.submit(compare) for _ in range(4)])
