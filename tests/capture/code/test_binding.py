"""How a meaning is called as a library's function is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multigrad.backend.finding.discovery import load_backend
from multigrad.capture.code.binding import Library
from multigrad.capture.code.table import registered_dialects


def spread(x: Any, axis: Any = None, keepdims: bool = False, *, correction: float = 0) -> Any:
    return ("spread", x, axis, keepdims, correction)


def solve(a: Any, b: Any, transposed: bool = False) -> Any:
    return ("solve", a, b, transposed)


def joined(*arrays: Any) -> Any:
    return ("joined", arrays)


def std(input: Any, dim: Any = -1, *, ddof: Any = 1, keepdim: bool = True, name: Any = None) -> Any:
    """Stands for a function of a library."""


def linsolve(B: Any, A: Any, adjoint: bool = False, hermitian: bool = False) -> Any:
    """Stands for another."""


def stack(*tensors: Any) -> Any:
    """Stands for one of any number."""


def minimum(a: Any, keepdims: Any = np._NoValue) -> Any:  # type: ignore[attr-defined]
    """Stands for one of NumPy's, which tells whether something is given."""


HOME = SimpleNamespace(std=std, lin=SimpleNamespace(solve=linsolve), stack=stack, minimum=minimum)


class Meanings:
    spread, solve, joined = staticmethod(spread), staticmethod(solve), staticmethod(joined)


def called(rows: str, **options: Any) -> Callable[..., Any]:
    (record,) = Library(HOME, **options).called({Meanings: rows}).values()
    return record


def test_synonyms_are_paired_and_defaults_are_the_librarys() -> None:
    record = called("spread: std")
    assert record("t") == ("spread", "t", -1, True, 1)
    assert record(input="t", dim=2, ddof=0, keepdim=False) == ("spread", "t", 2, False, 0)


def test_labels_are_dropped() -> None:
    assert called("spread: std")("t", name="n") == ("spread", "t", -1, True, 1)


def test_a_row_says_what_no_rule_finds() -> None:
    record = called("solve: lin.solve(B=b, adjoint=transposed)")
    assert record("b", "a", True) == ("solve", "a", "b", True)


def test_rooms_lend_their_names() -> None:
    record = called("solve: L.solve(B=b)", rooms={"L": HOME.lin})
    assert record("b", A="a") == ("solve", "a", "b", False)


def test_what_ours_does_not_know_may_be_given_as_its_default_alone() -> None:
    record = called("solve: lin.solve(B=b)")
    assert record("b", "a", hermitian=False) == ("solve", "a", "b", False)
    with pytest.raises(TypeError, match="linsolve with hermitian=True"):
        record("b", "a", hermitian=True)


def test_any_number_stays_any_number() -> None:
    assert called("joined: stack")("a", "b") == ("joined", ("a", "b"))


def test_what_is_not_given_is_ours_by_default() -> None:
    assert called("spread: minimum")("t") == ("spread", "t", None, False, 0)


def test_values_are_made_ours_by_name() -> None:
    assert called("spread: std", values={"dim": abs})("t") == ("spread", "t", 1, True, 1)


def test_a_wrong_call_is_pythons_error_in_the_librarys_words() -> None:
    with pytest.raises(TypeError, match=r"std\(\) got an unexpected keyword argument 'axis'"):
        called("spread: std")("t", axis=0)
    with pytest.raises(TypeError, match=r"linsolve\(\) missing 1 required .* argument: 'A'"):
        called("solve: lin.solve(B=b)")("b")


def test_names_that_the_library_lacks_are_left_out() -> None:
    assert Library(HOME).called({Meanings: "spread: deviation lin.deviation"}) == {}


def test_a_row_that_does_not_fit_says_so() -> None:
    with pytest.raises(TypeError, match="nothing gives 'b'"):
        called("solve: stack(tensors=a)")("t")


def test_in_order_takes_all_but_labels() -> None:
    record = Library(HOME).bound(std, lambda *given: given)
    assert record("t", name="n") == ("t", -1, 1, True)


def test_every_row_of_a_dialect_fits(backend: Any) -> None:
    load_backend(backend.name)
    for dialect in registered_dialects().values():
        for alias in [*dialect.aliases.values(), *dialect.methods.values()]:
            if hasattr(alias, "adapter"):
                alias.adapter()
