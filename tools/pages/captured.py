"""Which foreign names are captured, and what each records: read from the dialects' tables and the
handlers' code.

A name is public where a library shows it: `PLACES` lists the modules and classes that are looked
through, so that the result does not depend on what else has been imported.
"""

from __future__ import annotations

import dis
import functools
import importlib
import types
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from multigrad.backend.discovery import load_backend
from multigrad.capture import symbols
from multigrad.capture.dialect import Dialect, OwnTrace, find_dialect, load_dialects
from multigrad.capture.meanings.creation import TraceBound, create, stand_ins_of
from multigrad.graph import ops
from multigrad.graph.ir.op import Op
from multigrad.trace.xp import all as xp

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
RECORDING = f"{OWN}.trace.trace"  # below the ops


def load(dialect: str) -> Dialect:
    """Return the dialect of a library, which must be installed."""
    importlib.import_module(dialect)
    if dialect == "numpy":  # the one that is no backend's
        importlib.import_module(f"{OWN}.capture.dialects.numpy")
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
        elif handler.__module__ != RECORDING:
            for value in _referred(handler):
                if isinstance(value, Op):
                    if value not in ops.STRUCTURE:  # looked at, not recorded
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
