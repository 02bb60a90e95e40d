"""Our dataclasses are Python's, as far as anybody can tell from outside."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import weakref
from dataclasses import field, replace
from typing import Any

import pytest

from multigrad.graph.support import data
from multigrad.graph.support.versions import HeldWeakly

OPTIONS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for eq in (False, True)
]


def classes(home: Any, **options: Any) -> tuple[type, type]:
    """Return a class with all kinds of fields, and one that inherits from it."""
    dataclass = dataclasses.dataclass if home is dataclasses else data.dataclass

    @dataclass(**options)
    class Point:
        """A point."""

        x: int
        tags: tuple[str, ...] = ()
        made: list[int] = field(default_factory=list)
        aside: Any = field(default=None, compare=False)
        hidden: str = field(default="", repr=False)
        total: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + len(self.tags))

    @dataclass(**options)
    class Named(Point):
        name: str = "p"

        def __repr__(self) -> str:
            return f"<{self.name}>"

    return Point, Named


def names_of(value: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(value)]


@dataclasses.dataclass(frozen=True, slots=True)
class Python:
    x: Any
    y: int = 2


@data.dataclass(frozen=True, slots=True)
class Ours:
    x: Any
    y: int = 2


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_says_what_pythons_says(options: Any) -> None:
    for ours, pythons in zip(
        classes(data, **options), classes(dataclasses, **options), strict=True
    ):
        for given in ((1,), (1, ("a",)), (2, (), [3], "aside", "hidden")):
            made, expected = ours(*given), pythons(*given)
            assert repr(made) == repr(expected)
            assert names_of(made) == names_of(expected)
            assert (made == ours(*given)) == (expected == pythons(*given))
            assert made != expected
            assert repr(replace(made, x=7)) == repr(replace(expected, x=7))
        assert ours(1, aside=2) == ours(1, aside=3) or not options["eq"]
        assert ours(1).made is not ours(1).made
        assert list(inspect.signature(ours).parameters) == list(
            inspect.signature(pythons).parameters
        )
        assert ours.__match_args__ == pythons.__match_args__
        assert hasattr(ours(1), "__dict__") == hasattr(pythons(1), "__dict__")
        assert (ours.__hash__ is None) == (pythons.__hash__ is None)


@pytest.mark.parametrize("slots", [False, True])
def test_a_frozen_one_cannot_be_changed(slots: bool) -> None:
    point, _ = classes(data, frozen=True, slots=slots)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point(1).x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del point(1).x


def test_equal_ones_have_one_hash_and_others_are_told_apart() -> None:
    assert hash(Ours(1)) == hash(Ours(1, 2))
    assert len({Ours(1), Ours(1, 2), Ours(2), Ours(1, 3)}) == 3
    nan = float("nan")
    assert (Ours(nan) == Ours(nan)) == (Python(nan) == Python(nan))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ours([]))


def test_it_is_copied_pickled_matched_and_referred_to() -> None:
    @data.dataclass(slots=True)
    class Held(HeldWeakly):
        x: int = 1

    assert pickle.loads(pickle.dumps(Ours([1]))) == Ours([1]) == copy.deepcopy(Ours([1]))
    held = Held()
    assert weakref.ref(held)() is held
    match Ours(3, 4):
        case Ours(x, y):
            assert (x, y) == (3, 4)


def test_arguments_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"Ours.__init__\(\) missing 1 required .* argument: 'x'"):
        Ours()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Ours(1, z=2)  # type: ignore[call-arg]
