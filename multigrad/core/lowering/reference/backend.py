"""The NumPy backend, the reference for all others.

Scalars are cast to the input's dtype before they meet it (`weak`), because NumPy would promote
bfloat16. Floating-point warnings are off: inf and NaN are results here as in every framework.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ...backend.contract import Autodiff, Backend, Draws, Kernels, Tensors, late
from ...backend.emitted import Emitted
from ...backend.rows import LateRows
from ...ir.op import Op
from ...ops.numerics import RELEASE, as_numpy_dtype
from ...ops.table import Composed
from ...support.lazy_modules import imported_module, late_function
from .function import ReferenceFunction, quiet
from .kernels import FAST

Array = Any
# Above the core.
FEATURES = "multigrad.engine.lowering.reference.features"


def meaning(op: Op) -> Callable[..., Any] | None:
    """Return NumPy's function of an op, which is what the op means; None for an infix one."""
    if op.symbol is not None or "." in op.name:
        return None
    return op.numpy.function if isinstance(op.numpy, Composed) else op.numpy


OPS = LateRows({}, meaning)


def weak(value: Any, dtype: Any) -> Any:
    return dtype.type(value)


def attach(run: Callable[..., Any], tensors: tuple[Array, ...], name: str) -> tuple[Array, ...]:
    return run(*tensors)[0]


def lies_in_order(x: Array) -> bool:
    return bool(x.flags.c_contiguous)


def call(native: ReferenceFunction, emitted: Emitted) -> Callable[..., Any]:
    return native


def say_unwritable(x: Array) -> str:
    """Return why an array cannot be written to; "" if it can."""
    return "" if x.flags.writeable else "it is read-only; give its copy()"


def refuse(kind: type) -> str | None:
    """Return why a class of arrays is not taken: its results would silently differ."""
    if RELEASE < (2, 2):  # asked once for each class
        warnings.warn(
            f"numpy {np.__version__} gives another dtype where an array of bfloat16, or before "
            "NumPy 2.0 one without axes, meets a number: NumPy's own arrays need numpy>=2.2 for "
            "the dtypes that are promised. Tensors of other frameworks keep theirs",
            UserWarning,
            stacklevel=2,
        )
    if issubclass(kind, np.matrix):
        return "its * is the product of matrices; give numpy.asarray(x)"
    numpy_ma: Any = imported_module("numpy.ma")
    if numpy_ma is not None and issubclass(kind, numpy_ma.MaskedArray):
        return "its mask would be lost; give x.filled(0.0), and multiply by the mask yourself"
    return None


def unpack_bits(bits: Any, like: Any) -> Any:
    shape = np.shape(like)
    return np.unpackbits(bits, count=math.prod(shape)).reshape(shape).view(np.bool_)


def render(emitted: Emitted) -> str:
    """Return the source of up to five functions; a Function's return tuples, a rule's one array."""
    # The rule "triangular" under a step: numbers that meet arrays are prepared once.
    #
    #     def prepare(wrap, width):
    #         return (wrap(scalar_maximum(width, 1e-06)), wrap(1.0), wrap(0.0),)
    #
    #     def forward(tin):
    #         return heaviside(tin)
    #
    #     def keep(tin, output, width, n1, n2, n3):
    #         return (tin,)
    #
    #     def backward(grad_out, tin, width, n1, n2, n3):
    #         return mul_into(maximum_(sub_into(div_(abs(tin), n1), n2), n3), grad_out)
    #
    # In forward mode, `push(tangent, tin, output, width)` follows.
    f, k, b = emitted.fast.forward, emitted.fast.keep, emitted.fast.backward
    computed = iter(k.results)
    kept_results = "".join(
        f"{next(computed) if name in emitted.residuals.computed else name}, "
        for name in emitted.residuals.names
    )
    residuals = "".join(f", {name}" for name in emitted.residuals.names)
    shapes = "".join(f", shape_of_{name}" for name in emitted.residuals.shapes)
    inputs, cotangents = ", ".join(emitted.names.inputs), ", ".join(emitted.names.cotangents)
    outputs = ", ".join(emitted.names.outputs)
    params = "".join(f", {name}" for name in emitted.forward_params)
    prepare, constants = _render_prepare(emitted)
    forward_constants = "" if emitted.origin.is_rule else constants
    result, gradients = f.result, emitted.gradients(b)[0]
    if not emitted.origin.is_rule:
        result = f"({f.result},)"
        gradients = f"({', '.join(emitted.gradients(b))},)"
    return f"""\
{prepare}def forward({inputs}{params}{forward_constants}):
{f.indented(4)}    return {result}


def keep({inputs}, {outputs}{emitted.arguments}{constants}):
{k.indented(4)}    return ({kept_results.strip()})


def backward({cotangents}{residuals}{emitted.arguments}{shapes}{constants}):
{b.indented(4)}    return {gradients}
{_render_push(emitted)}"""


def _render_push(emitted: Emitted) -> str:
    if emitted.derivative.tangent is None:
        return ""
    tangents = ", ".join(emitted.names.tangents)
    values = ", ".join((*emitted.names.inputs, *emitted.names.outputs))
    return f"""

def push({tangents}, {values}{emitted.arguments}):
{emitted.derivative.tangent.indented(4)}    return ({", ".join(emitted.pushed())},)
"""


def _render_prepare(emitted: Emitted) -> tuple[str, str]:
    # Constants are computed from the params once, and passed to each call.
    prepared = emitted.fast.prepared
    names = {} if prepared is None else dict(prepared.names)
    for name in emitted.names.params:  # these are arguments anyway
        names.pop(name, None)
    if prepared is None or not names:
        return "", ""
    lines = "".join(f"    {line}\n" for line in prepared.lines)
    source = f"""\
def prepare(wrap{emitted.arguments}):
{lines}    return ({"".join(f"{word}, " for word in names.values()).strip()})


"""
    return source, "".join(f", {name}" for name in names)


backend = Backend(
    name="numpy",
    tensors=Tensors(
        types=(np.ndarray, np.generic),
        dtype=as_numpy_dtype,
        to_numpy=np.asarray,
        is_contiguous=lies_in_order,
        from_numpy=np.asarray,
        in_code=("import numpy as np", 'np.array({}, "{}")'),
        weak=weak,
        weak_literals=True,
        refuse=refuse,
        write=np.copyto,
        unwritable=say_unwritable,
    ),
    kernels=Kernels(
        rows=OPS,
        unsupported={},
        while_loop=late_function("multigrad.engine.ops.loops:run_while"),
        scan=late_function("multigrad.engine.ops.loops:run_scan"),
        bits=(np.packbits, unpack_bits),
        fast=FAST,
    ),
    autodiff=Autodiff(
        render=render,
        finish=ReferenceFunction,
        call=call,
        attach=attach,
        wrap=quiet,
        forward_mode=True,
        keeps_float_derivatives=True,  # nobody differentiates NumPy code
        watches_outputs=False,
    ),
    draws=Draws(replays=True),  # none of NumPy's own draws are captured
    interop=late(f"{FEATURES}:INTEROP"),
    models=late(f"{FEATURES}:MODELS"),
    modes=late(f"{FEATURES}:MODES"),
    differences=late(f"{FEATURES}:DIFFERENCES"),
    ejection=late("multigrad.engine.lowering.reference.eject:EJECTION"),
)
