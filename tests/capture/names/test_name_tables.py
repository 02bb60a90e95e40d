"""How tables of names are read, and a meaning is called as a library's function is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multigrad.core.backend.discovery import load_backend
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.dialect import registered_dialects
from multigrad.engine.capture.name_tables import (
    COMMON,
    Library,
    common,
    handlers_by_name,
    handlers_by_signature,
    named,
    ops_by_name,
    parse,
)


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


CALLS: dict[str, tuple[str, dict[str, Any], Callable[..., Any], tuple[Any, ...]]] = {
    "synonyms are paired, and defaults are the library's": (
        "spread: std", {}, lambda std: std("t"), ("spread", "t", -1, True, 1)
    ),
    "all by their synonyms": (
        "spread: std", {}, lambda std: std(input="t", dim=2, ddof=0, keepdim=False),
        ("spread", "t", 2, False, 0),
    ),
    "labels are dropped": (
        "spread: std", {}, lambda std: std("t", name="n"), ("spread", "t", -1, True, 1)
    ),
    "a row says what no rule finds": (
        "solve: lin.solve(B=b, adjoint=transposed)", {}, lambda solve: solve("b", "a", True),
        ("solve", "a", "b", True),
    ),
    "rooms lend their names": (
        "solve: L.solve(B=b)", {"rooms": {"L": HOME.lin}}, lambda solve: solve("b", A="a"),
        ("solve", "a", "b", False),
    ),
    "any number stays any number": (
        "joined: stack", {}, lambda stack: stack("a", "b"), ("joined", ("a", "b"))
    ),
    "what is not given is ours by default": (
        "spread: minimum", {}, lambda minimum: minimum("t"), ("spread", "t", None, False, 0)
    ),
    "values are made ours by name": (
        "spread: std", {"values": {"dim": abs}}, lambda std: std("t"), ("spread", "t", 1, True, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_bound_to_our_meaning(case: str) -> None:
    rows, options, call, expected = CALLS[case]
    assert call(called(rows, **options)) == expected


def test_what_ours_does_not_know_may_be_given_as_its_default_alone() -> None:
    record = called("solve: lin.solve(B=b)")
    assert record("b", "a", hermitian=False) == ("solve", "a", "b", False)
    with pytest.raises(TypeError, match="linsolve with hermitian=True"):
        record("b", "a", hermitian=True)


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


def test_a_table_is_read_as_its_grammar_says() -> None:
    text = "exp; abs: absolute\n fabs lax.abs ; solve: L.solve(B=b,\n c=); tril(x, k=0): tril(k=k)"
    entries = [(entry.head, entry.names) for entry in parse(text, "a table")]
    assert entries == [
        (("exp", ""), (("exp", ""),)),
        (("abs", ""), (("absolute", ""), ("fabs", ""), ("lax.abs", ""))),
        (("solve", ""), (("L.solve", "B=b,\n c="),)),
        (("tril", "x, k=0"), (("tril", "k=k"),)),
    ]
    assert [*parse(text, "a table")][2].names[0].pairs() == {"B": "b", "c": ""}
    assert not [*parse("", "a table")]


WRONG = {
    "a name without a colon": ("exp; abs absolute", 2, "'absolute' is unexpected"),
    "nothing after a colon": ("exp; abs:\n; log", 2, "a name is missing"),
    "two colons": ("exp; abs: absolute: fabs", 2, "':' is unexpected"),
    "an entry of nothing": ("exp; ; log", 2, "a name is missing"),
    "a semicolon at the end": ("exp; log;\n ", 3, "a name is missing"),
    "an open bracket": ("solve: solve(rhs=b", 1, r"'solve\(rhs=b' is unexpected"),
    "what is no name": ("exp;\nabs: fabs 2abs", 2, "line 2.*'2abs' is unexpected"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_the_table_the_entry_and_the_place(case: str) -> None:
    text, number, reason = WRONG[case]
    with pytest.raises(ValueError, match=rf"(?s)names of torch, entry {number} on .*{reason}"):
        list(parse(text, "names of torch"))


def test_a_row_of_what_does_not_exist_says_which() -> None:
    with pytest.raises(ValueError, match=r"names of numpy, entry 2 .*'expp: exp': no op named"):
        named("log; expp: exp", np)
    with pytest.raises(ValueError, match=r"entry 1 .*: no op named 'abz'.*'abs'"):
        ops_by_name("abz")
    with pytest.raises(ValueError, match=r"by Meanings, entry 2 .*: no function 'spreads'.*spread"):
        handlers_by_name({Meanings: "solve; spreads"})
    with pytest.raises(ValueError, match=r"methods by Meanings, entry 1 .*one function"):
        handlers_by_signature({Meanings: "solve(a, b): solve spread"})


def test_names_find_the_function_of_their_op() -> None:
    assert named("abs: absolute; log", np) == {
        np.absolute: xp.abs, np.log: xp.log
    }  # fmt: skip
    assert handlers_by_signature({Meanings: "solved(x, y=1): solve(y=b)"})["solved"]("x") == (
        "solve", "x", 1, False
    )  # fmt: skip


def test_no_common_name_stands_at_two_ops() -> None:
    words = [term.name for entry in parse(COMMON, "common names") for term in entry.names]
    assert len(words) == len(set(words)) > 100


def test_common_names_are_those_that_each_module_has_as_it_spells_them() -> None:
    first, second = SimpleNamespace(abs="abs", isnan="isnan"), SimpleNamespace(ABSOLUTE="absolute")
    assert common(first) == {"abs": xp.abs, "isnan": xp.isnan}
    assert common(first, second, spell=str.upper) == {"absolute": xp.abs}


def test_every_row_of_a_dialect_fits(backend: Any) -> None:
    load_backend(backend.name)
    for dialect in registered_dialects().values():
        for alias in [*dialect.names.aliases.values(), *dialect.names.methods.values()]:
            if hasattr(alias, "adapter"):
                alias.adapter()
