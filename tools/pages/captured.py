"""Which foreign names are captured, and what each records: read from the dialects' tables and the
handlers' code.

A name is public where a library shows it: `PLACES` lists the modules and classes that are looked
through, so that the result does not depend on what else has been imported.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import types
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from multigrad import xp as neutral
from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.op import Op
from multigrad.core.support.lazy_modules import loaded_once
from multigrad.core.trace import trace
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture import symbols
from multigrad.engine.capture.dialect import Dialect, OwnTrace, find_dialect, load_dialects
from multigrad.engine.capture.meanings.creation import TraceBound, create, stand_ins_of
from multigrad.engine.capture.values.methods import METHODS
from multigrad.engine.trace import code_trace

from .markdown import code, page, table

# By dialect: how people write a place, and what it is. The first place that shows a function names
# it.
PLACES: dict[str, dict[str, str]] = {
    "numpy": {
        "np": "numpy", "np.linalg": "numpy.linalg", "np.fft": "numpy.fft",
        "scipy.special": "scipy.special",
        "scipy.linalg": "scipy.linalg",
    },
    "torch": {
        "torch": "torch", "F": "torch.nn.functional", "torch.special": "torch.special",
        "torch.autograd": "torch.autograd", "torch.func": "torch.func",
        "torch.linalg": "torch.linalg", "torch.fft": "torch.fft", "Tensor": "torch.Tensor",
        "torch.distributed": "torch.distributed",
    },
    "jax": {
        "jnp": "jax.numpy", "jnp.linalg": "jax.numpy.linalg", "jnp.fft": "jax.numpy.fft",
        "jax.image": "jax.image", "jax.nn": "jax.nn",
        "jax.lax": "jax.lax",
        "jax.lax.linalg": "jax.lax.linalg", "jax.scipy.linalg": "jax.scipy.linalg",
        "jax.scipy.special": "jax.scipy.special", "jax.scipy.stats.norm": "jax.scipy.stats.norm",
        "jax.ops": "jax.ops", "jax": "jax",
    },
    "tensorflow": {
        "tf": "tensorflow", "tf.math": "tensorflow.math", "tf.nn": "tensorflow.nn",
        "tf.linalg": "tensorflow.linalg", "tf.random": "tensorflow.random",
        "tf.bitwise": "tensorflow.bitwise", "tf.signal": "tensorflow.signal",
        "tf.image": "tensorflow.image", "tf.quantization": "tensorflow.quantization",
        "tf.raw_ops": "tensorflow.raw_ops", "tf.compat.v1": "tensorflow.compat.v1",
    },
    "keras": {
        "ops": "keras.ops", "keras.activations": "keras.activations",
        "keras.random": "keras.random",
        "keras.backend": "keras.backend", "keras.losses": "keras.losses",
        "keras.utils": "keras.utils", "keras.quantizers": "keras.quantizers",
    },
}  # fmt: skip
OWN = "multigrad"
RECORDING = {trace.__name__, code_trace.__name__}  # below the ops
LATE = loaded_once(lambda: len).__code__  # of all functions that load by need


def load(dialect: str) -> Dialect:
    """Return the dialect of a library, which must be installed."""
    importlib.import_module(dialect)
    if dialect == "numpy":  # the one that is no backend's
        importlib.import_module(f"{OWN}.engine.capture.dialects.numpy")
    elif dialect == "keras":
        load_dialects()
    else:
        load_backend(dialect)
    found = find_dialect(dialect)
    if found is None:
        raise LookupError(f"{dialect} is imported and has no dialect")
    return found


def captured_names(dialect: str) -> list[tuple[list[str], Any]]:
    """Return a library's captured functions: all public names of each, and its handler."""
    names = load(dialect).names
    aliases = names.aliases
    rows: Mapping[Any, Any] = {**stand_ins_of([dialect]), **names.hidden, **dict(aliases)}
    found: dict[int, tuple[list[str], Any]] = {}
    for shown, place in PLACES[dialect].items():
        holder = find_place(place)
        for name in sorted(vars(holder) if isinstance(holder, types.ModuleType) else dir(holder)):
            value = None if name.startswith("_") else getattr(holder, name, None)
            if value is None or not isinstance(value, Hashable):
                continue
            handler = rows.get(value)
            if handler is None and callable(value) and value in aliases:  # found, and not listed
                handler = aliases[value]
            if handler is not None:
                found.setdefault(id(value), ([], handler))[0].append(f"{shown}.{name}")
    return list(found.values())


def find_place(place: str) -> Any:
    """Return a module or class by its dotted name, attributes first: imports may make another."""
    root, *names = place.split(".")
    holder: Any = importlib.import_module(root)
    for name in names:
        try:
            holder = getattr(holder, name)
        except AttributeError:
            holder = importlib.import_module(f"{holder.__name__}.{name}")
    return holder


# --- what a handler records -----------------------------------------------------------------------


def describe(handler: Any) -> str:
    """Return the ops that a handler may record, as a cell of a table: one, or its parts."""
    if isinstance(handler, OwnTrace):
        return "by its own code"
    names: dict[str, None] = {}  # in the order in which its code leads to them
    _collect(handler, names, set())
    if len(names) > 1:
        names.pop("cast", None)  # where a dtype is asked for
    words = ", ".join(f"`{name}`" for name in names)
    return f"composed: {words}" if len(names) > 1 else words or "no op"


def _collect(handler: Any, names: dict[str, None], seen: set[int]) -> None:
    if id(handler) in seen:
        return
    seen.add(id(handler))
    handler = getattr(handler, "meaning", handler)  # of a row of `name_tables.Library`
    if isinstance(handler, TraceBound):
        run: Any = handler.run
        handler = run.args[-1] if getattr(run, "func", None) is create else handler
    if isinstance(handler, functools.partial):
        for part in (handler.func, *handler.args):
            _collect(part, names, seen)
    elif isinstance(handler, types.FunctionType) and handler.__module__.startswith(OWN):
        own = leaf_ops().get(handler)
        if own is not None:
            names[own] = None
        elif handler.__code__ is LATE:  # whether it has run or not
            _collect(inspect.getclosurevars(handler).nonlocals["load"](), names, seen)
        elif handler.__module__ not in RECORDING:
            for value in _referred(handler):
                if isinstance(value, Op):
                    if value in ops.CALLABLE_OPS:  # looked at, not recorded
                        names[value.name] = None
                else:
                    _collect(value, names, seen)


@functools.cache
def leaf_ops() -> dict[Any, str]:
    """The functions of `xg.xp` that stand for one op."""
    from .docs import xp_name

    leaves = {getattr(xp, xp_name(op).strip("`"), None): op.name for op in ops.CALLABLE_OPS}
    return {**leaves, xp.cast: "cast", symbols.cast: "cast"}


def _referred(function: types.FunctionType) -> Iterator[Any]:
    """Yield the functions and ops that a function's code and closure name."""
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    holder: Any = None
    for instruction in dis.get_instructions(function.__code__):
        if instruction.opname == "LOAD_GLOBAL":
            value = function.__globals__.get(instruction.argval)
            holder = value if isinstance(value, types.ModuleType) else None
            if holder is None:
                yield value
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and holder is not None:
            yield getattr(holder, instruction.argval, None)
            holder = None


# --- pages ------------------------------------------------------------------------------------

LIBRARIES = {
    "numpy": "NumPy and SciPy",
    "torch": "PyTorch",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "xp": "xg.xp and the Array API",
    "methods": "Methods of a tensor",
}
SHORT = {
    "numpy": "`np` is NumPy. ",
    "torch": "`F` is torch.nn.functional. ",
    "jax": "`jnp` is jax.numpy. ",
    "tensorflow": "`tf` is TensorFlow. ",
    "keras": "`ops` is keras.ops, on any backend of Keras. ",
    "xp": "`xp` is `xg.xp`, which `x.__array_namespace__()` gives too. ",
    "methods": "Every library's tensors have them; where libraries differ, that of the function's "
    "own library is meant. ",
}


def render_libraries() -> str:
    rows = [
        (f"[{title}]({page_of(name)})", str(len(rows_of(name))))
        for name, title in LIBRARIES.items()
    ]
    return page(
        "Captured functions",
        "Every name that a rule or a Function may use has a row on the page of its library, with "
        "the [ops](ops.md) that it is recorded as. A library's name keeps that library's "
        "defaults: `torch.std` divides by n - 1, `jnp.std` by n.",
        table(("library", "functions"), rows),
        "Python's operators, `abs`, `min`, `max` and `len`, and the functions of `math` on "
        "numbers are captured everywhere.",
        "## A function without a row\n\nThe library's own trace of the call is captured, for its "
        "shapes and dtypes; likewise for a call with arguments that the row does not take. torch "
        "and TensorFlow trace it themselves, Keras by its backend, JAX by the jaxpr of the "
        "function that makes the call; of NumPy, the Python code of the function is captured. "
        "`xg.show` says which. A call that draws, reads a value or needs an operator without an "
        "op is refused with the library's reason.",
    )


def page_of(name: str) -> str:
    return f"dialects/{name}.md"


def rows_of(name: str) -> list[tuple[str, str]]:
    """Return the names of a library with the ops that each is recorded as."""
    if name == "xp":
        functions = {each: getattr(neutral, each) for each in dir(neutral)}
        return [(f"`xp.{n}`", describe(each)) for n, each in functions.items() if callable(each)]
    if name == "methods":
        return [(f"`x.{each}`", describe(handler)) for each, handler in sorted(METHODS.items())]
    return [(code(names), describe(handler)) for names, handler in captured_names(name)]


def render_library(name: str) -> str:
    rows = rows_of(name)
    return page(
        f"Captured functions: {LIBRARIES[name]}",
        f"{len(rows)} [captured functions](../dialects.md). {SHORT[name]}Different names of one "
        "function share a row. *Composed*: the function is several [ops](../ops.md), of which the "
        "arguments decide. *No op*: it gives the tensor itself, a shape, a dtype, a constant or a "
        "Python value.",
        table(("name", "ops"), rows),
    )
