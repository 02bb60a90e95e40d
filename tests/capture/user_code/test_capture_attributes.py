"""The table of attributes: each that a library's tensor has is decided on, and a symbol answers by
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.op import INPUT
from multigrad.core.trace.trace import NeedsConcrete
from multigrad.engine.capture.dialect import find_dialect, load_dialects
from multigrad.engine.capture.symbols import get_attribute
from multigrad.engine.capture.values.attributes import NUMBERS, VALUES, find_row
from multigrad.engine.capture.values.tracer import V
from multigrad.engine.trace.code_trace import CodeTrace

LIBRARIES = [
    pytest.param(name, marks=[pytest.mark.needs(name)] if name != "numpy" else [])
    for name in ("numpy", "torch", "jax", "tensorflow")
]
X = np.array([[-1.0, 0.5, 2.0], [3.0, -0.25, 0.0]], np.float32)
G = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0]], np.float32)

# Other ways in which Python reads a value: the form, its kind for a number and for a tensor.
FORMS: tuple[tuple[str, str, str, str], ...] = (
    ("if x, while x, x and y, not x", "fact", "refused", VALUES),
    ("the same of a function's tensor of one element", "fact", "modelled", "all ways, up to 16"),
    ("float(x), int(x), complex(x)", "fact", "refused", NUMBERS),
    ("x.item() of a function's tensor of one element", "fact", "modelled", "stays a tensor"),
    ("assert x > 0, if x < 0: raise", "fact", "modelled", "assumed; its own framework runs it"),
    ("x.name = ..., which x does not have", "refused", "modelled", "callers: on its own framework"),
    ("range(x), an index of a list", "fact", "refused", NUMBERS),
    ("{x: ...}, x in {...}, hash(x)", "fact", "refused", NUMBERS),
    ("str(x), repr(x), f'{x}', format(x)", "fact", "refused", NUMBERS),
    ("x.shape as a tuple, x.dtype as a key or by `is`", "fact", "fact", ""),
    ("len(x), x.shape[i]", "refused", "modelled", "a number has no length"),
    ("isinstance(x, ...), type(x), x.__class__, match, singledispatch", "modelled", "modelled", ""),
    ("for row in x, list(x), zip(x), enumerate(x)", "refused", "fact", "in a rule refused"),
    ("reversed(x)", "refused", "refused", VALUES),
    ("copy.deepcopy(x)", "modelled", "modelled", ""),
    ("copy.copy(x)", "modelled", "refused", "a view in one library, a copy in another"),
    ("pickle.dumps(x), id(x)", "refused", "refused", NUMBERS),
    ("hasattr(x, name), getattr(x, name, default)", "modelled", "modelled", ""),
    ("try: ... except: around any of these", "fact", "refused", "what x could not say is kept"),
    ("random, numpy.random, torch.rand without a symbol", "refused", "refused", "drawn once"),
    ("time, os.urandom, uuid, secrets", "refused", "refused", "another value each time"),
    ("print, open, input", "refused", "refused", "once, and not at each call"),
    ("global, nonlocal, list.append, self.last = x", "refused", "refused", "once, on a symbol"),
    ("a tensor of an object, a variable", "refused", "refused", "may change between calls"),
    ("a number, an array or a tensor of the module or the closure", "modelled", "modelled", ""),
)


def symbol_of(library: str) -> tuple[Any, V]:
    """Return a library's dialect and a symbol in a function that is written in it, with this test
    as the user's.
    """
    load_backend(library)
    load_dialects()
    trace = CodeTrace("asked", {}, V, kind="function")
    trace.reading.dialect = library
    trace.source.codes |= {answer_of.__code__, get_attribute.__code__}
    return find_dialect(library), trace.input("x", INPUT)  # type: ignore[return-value]


def answer_of(symbol: V, name: str) -> str:
    """Return how a symbol answers when it is asked for an attribute."""
    try:
        get_attribute(symbol, name)
    except xg.TraceError:
        return "refused"
    except NeedsConcrete as need:
        fact = need.facts[0]
        if not fact.startswith("attribute."):
            return "fact"
        symbol.trace.facts[fact] = False  # the caller has set no such attribute
        return answer_of(symbol, name)
    except AttributeError:
        return "absent"
    return "answered"


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_attribute_of_a_library_s_tensor_has_a_row(library: str) -> None:
    dialect, _ = symbol_of(library)
    without = [name for name in dir(dialect.tensors.tensor) if find_row(name, dialect, V) is None]
    assert not without, f"{library} has attributes without a row in the table: {without}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_symbol_answers_what_its_row_says(library: str) -> None:
    dialect, symbol = symbol_of(library)
    wrong = []
    for name in dir(dialect.tensors.tensor):
        row, given = find_row(name, dialect, V), answer_of(symbol, name)
        assert row is not None
        # Python's own protocols are there to be called, and refuse then.
        expected = {
            "modelled": {"answered", "fact"},
            "fact": {"answered", "fact"},
            "refused": {"answered", "refused"} if name.startswith("__") else {"refused"},
        }
        if given not in expected[row.kind]:
            wrong.append((name, row.kind, given))
    assert not wrong


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_name_of_another_library_is_no_attribute(library: str) -> None:
    dialect, symbol = symbol_of(library)
    for name in ("clamp", "at", "masked_fill", "astype", "get_shape", "tofile", "unsqueeze_"):
        if not hasattr(dialect.tensors.tensor, name):
            assert answer_of(symbol, name) == "absent" or library == "numpy"


@pytest.mark.parametrize("name", ["no_such_name", "nor_this_", "__nor_that__"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_name_of_no_library_is_an_attribute_error_as_in_python(library: str, name: str) -> None:
    _, symbol = symbol_of(library)
    assert answer_of(symbol, name) in ("absent", "refused" if library == "numpy" else "absent")


def test_every_form_is_decided_on_for_numbers_and_tensors() -> None:
    for form, number, tensor, reason in FORMS:
        assert {number, tensor} <= {"modelled", "fact", "refused"}
        assert reason or "refused" not in (number, tensor), form


@pytest.mark.needs("jax")
def test_a_torch_method_in_a_rule_in_jax_fails_as_in_python(jnp: Any) -> None:
    def clamped(ctx: Any, g: Any, x: Any) -> Any:
        return jnp.multiply(g, x.clamp(0.0, 1.0))

    rule = xg.register("under test", override=True, native=False)(clamped)
    with pytest.raises(xg.TraceError, match="clamp"):
        rule(None, jnp.asarray(G), jnp.asarray(X))


@pytest.mark.needs("torch")
def test_a_torch_method_beside_numpy_s_constants_is_torch_s(torch: Any) -> None:
    def clamped(ctx: Any, g: Any, x: Any) -> Any:
        return g * x.clamp(-np.pi / 2, np.pi / 2)

    rule = xg.register("under test", override=True, native=False)(clamped)
    given = rule(None, torch.from_numpy(G), torch.from_numpy(X))
    expected = clamped(None, torch.from_numpy(G), torch.from_numpy(X))
    np.testing.assert_allclose(given.numpy(), expected.numpy(), rtol=1e-6)
