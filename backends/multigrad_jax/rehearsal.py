"""How proofs run functions of jax: traced once if they run several times.

A proof runs the user's code, and the code made of its graph, on small arrays of many shapes.
`rehearse` traces such code to a jaxpr, of which each equation is then computed by NumPy.

Eager jax would compile a kernel for each primitive and shape, some 25 ms each, and a compilation of
the whole takes XLA seconds. PRIMITIVES has rows only where NumPy's numbers are XLA's up to
rounding; jax computes all others. Tests: `tests/lowering/test_rehearsed_jax.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from multigrad.core import ops
from multigrad.core.support.threads import set_within
from multigrad.engine.ops.loops import limited

from .core.attach.render import REHEARSED
from .core.versions import core, folding_constants
from .jaxprs import (
    INLINED,
    TracedResults,
    bind_unchanged,
    einsum_subscripts,
    open_jaxpr,
    scan_parts,
    while_parts,
)

Array = Any
# Computes a primitive: (*arrays, **params) -> an array, a list where there are several, or
# NotImplemented for operands that jax must compute.
Compute = Callable[..., Any]
# Computes an equation: its operands -> its results.
EquationStep = Callable[[Sequence[Any]], Sequence[Any]]


def rehearse(run: Callable[..., Any], arrays: Sequence[Array]) -> Callable[..., Any]:
    """Return a function that computes the result tree for arrays of these shapes and dtypes."""
    results = TracedResults((jax.Array, np.ndarray))
    # The same settings as where the function is called, so that jax's cached traces are found.
    with set_within(REHEARSED, True), folding_constants(False):
        closed_jaxpr = jax.make_jaxpr(lambda *tensors: results.split(run(*tensors)))(*arrays)
    compute = prepare(closed_jaxpr.jaxpr, closed_jaxpr.consts)

    def compute_tree(*tensors: Array) -> Any:
        with np.errstate(all="ignore"):
            return results.join(compute(tensors))

    return compute_tree


def prepare(jaxpr: Any, constants: Sequence[Any]) -> Callable[[Sequence[Array]], list[Array]]:
    """Return a reusable function that computes a jaxpr; each equation is analyzed once.

    All values of a run are in one list, `initial` with its gaps filled: constants, arguments, then
    literals and results in the order of the equations.
    """
    initial: list[Any] = []
    places: dict[Any, int] = {}  # of each variable in the list

    def put(variables: Sequence[Any], values: Sequence[Any]) -> slice:
        first = len(initial)
        initial.extend(values)
        places.update(zip(variables, range(first, len(initial)), strict=True))
        return slice(first, len(initial))

    def reader_of(atoms: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
        indices = []
        for atom in atoms:
            if isinstance(atom, core.Literal):
                indices.append(len(initial))
                initial.append(np.asarray(atom.val, atom.aval.dtype))
            else:
                indices.append(places[atom])
        if len(indices) > 1:
            return operator.itemgetter(*indices)
        # Of a single index it would return no sequence.
        return operator.itemgetter(slice(indices[0], indices[0] + 1) if indices else slice(0))

    put(jaxpr.constvars, list(map(as_numpy, constants)))
    inputs = put(jaxpr.invars, [None] * len(jaxpr.invars))
    steps = []
    for equation in jaxpr.eqns:
        read, results = reader_of(equation.invars), equation.outvars
        steps.append((prepare_equation(equation), read, put(results, [None] * len(results))))
    read_outputs = reader_of(jaxpr.outvars)

    def compute(arguments: Sequence[Any]) -> list[Array]:
        values = list(initial)
        values[inputs] = map(as_numpy, arguments)
        for step, read, outputs in steps:
            values[outputs] = step(read(values))
        return list(read_outputs(values))

    return compute


def as_numpy(value: Any) -> Any:
    """Return a NumPy array; a typed key stays jax's, as NumPy has none."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return value
    return np.asarray(value)


def prepare_equation(equation: Any) -> EquationStep:
    """Return a function that computes one equation's results, in the dtypes that it declares."""
    name, params = equation.primitive.name, equation.params
    if name in INLINED:
        return prepare(*open_jaxpr(params[INLINED[name]]))
    if name in CONTROL:
        return partial(CONTROL[name], params=params)
    dtypes = [variable.aval.dtype for variable in equation.outvars]
    if name in ONE_PARAM:
        function, param = ONE_PARAM[name]
        return lambda operands: (np.asarray(function(*operands, params[param]), dtypes[0]),)
    compute = PRIMITIVES.get(name)
    if isinstance(compute, np.ufunc):  # most of them; their params do not matter
        return lambda operands: (np.asarray(compute(*operands), dtypes[0]),)

    def by_jax(operands: Sequence[Array]) -> list[Array]:
        return list(map(as_numpy, bind_unchanged(equation, operands)))

    if compute is None:
        return by_jax
    # the params that the function takes; the others only tell XLA how to compute
    code = getattr(compute, "__code__", None)
    first = code.co_argcount if code else 0
    names = code.co_varnames[first : first + code.co_kwonlyargcount] if code else ()
    options = {param: params[param] for param in names if param in params}

    def by_numpy(operands: Sequence[Array]) -> Sequence[Array]:
        results = compute(*operands, **options)
        if results is NotImplemented:
            return by_jax(operands)
        if equation.primitive.multiple_results:
            return list(map(np.asarray, results, dtypes))
        return (np.asarray(results, dtypes[0]),)

    return by_numpy


def cond(operands: Sequence[Array], params: Mapping[str, Any]) -> list[Array]:
    branches = params["branches"]
    # jax clamps the index of a branch
    index = min(max(int(operands[0]), 0), len(branches) - 1)
    return prepare(*open_jaxpr(branches[index]))(operands[1:])


def scan(operands: Sequence[Array], params: Mapping[str, Any]) -> list[Array]:
    constants, carry, rows = scan_parts(params, operands)
    n_carry = len(carry)
    turns = range(params["length"])
    ys: list[list[Array]] = []  # of each turn
    body = prepare(*open_jaxpr(params["jaxpr"]))
    for i in reversed(turns) if params["reverse"] else turns:
        results = body([*constants, *carry, *(row[i] for row in rows)])
        carry = results[:n_carry]
        ys.append(results[n_carry:])
    if params["reverse"]:
        ys.reverse()
    avals = params["jaxpr"].out_avals[n_carry:]
    stacks = [
        np.stack([y[i] for y in ys]) if ys else np.zeros((0, *aval.shape), aval.dtype)
        for i, aval in enumerate(avals)
    ]
    return [*carry, *stacks]


def while_(operands: Sequence[Array], params: Mapping[str, Any]) -> list[Array]:
    cond_constants, body_constants, carry = while_parts(params, operands)
    goes_on, body = (prepare(*open_jaxpr(params[name])) for name in ("cond_jaxpr", "body_jaxpr"))
    # a loop that a proof's values never end must stop
    body = limited(body)
    while goes_on([*cond_constants, *carry])[0]:
        carry = body([*body_constants, *carry])
    return list(carry)


# Computes an equation with jaxprs among its params: (operands, params) -> results.
CONTROL = {"cond": cond, "scan": scan, "while": while_}


# --- primitives, by NumPy -----------------------------------------------------------------------
def floats_only(function: Callable[..., Array]) -> Compute:
    """Return a function that leaves integers to jax: XLA differs at the ends of their range."""

    def compute(*arrays: Array) -> Array:
        if not is_float(arrays[0]):
            return NotImplemented
        return function(*arrays)

    return compute


def is_float(x: Array) -> bool:
    return x.dtype.kind == "f" or x.dtype.name == "bfloat16"


def widen_half(x: Array) -> Array:
    """Return 16-bit floats as float32, in which XLA adds them up; all else unchanged."""
    return x.astype(np.float32) if is_float(x) and x.dtype.itemsize == 2 else x


def maximum(a: Array, b: Array) -> Array:
    # In 16 bits NumPy picks the other one of 0 and -0.
    return np.maximum(widen_half(a), widen_half(b))


def minimum(a: Array, b: Array) -> Array:
    return np.minimum(widen_half(a), widen_half(b))


def sign(x: Array) -> Array:
    # XLA keeps the sign of zero, NumPy does not
    return np.where((x == 0) | np.isnan(x), x, np.sign(x))


def integer_pow(x: Array, *, y: int) -> Array:
    if not is_float(x) and y < 0:
        return NotImplemented
    result = np.ones_like(x)
    for _ in range(abs(y)) if abs(y) < 8 else ():
        result = result * x
    if abs(y) >= 8:
        result = np.power(x, abs(y))
    return x.dtype.type(1) / result if y < 0 else result


def round_(x: Array, *, rounding_method: Any) -> Array:
    if rounding_method != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return NotImplemented
    return np.round(x)


def select(which: Array, *cases: Array) -> Array:
    if which.dtype != bool or len(cases) != 2:
        return NotImplemented
    return np.where(which, cases[1], cases[0])


def convert(x: Array, *, new_dtype: Any) -> Array:
    dtype = np.dtype(new_dtype)
    # XLA saturates at the limits of the integer type, NumPy does not
    if is_float(x) and dtype.kind in "iu":
        return NotImplemented
    return x.astype(dtype)


def broadcast_in_dim(x: Array, *, shape: Any, broadcast_dimensions: Any) -> Array:
    if any(not isinstance(n, int) for n in shape):
        return NotImplemented
    aligned_shape = [1] * len(shape)
    for i, place in enumerate(broadcast_dimensions):
        aligned_shape[place] = x.shape[i]
    result = np.empty(shape, x.dtype)
    result[...] = x.reshape(aligned_shape)
    return result


def reshape(x: Array, *, new_sizes: Any, dimensions: Any = None) -> Array:
    if dimensions is not None:
        return NotImplemented
    return x.reshape(new_sizes)


def concatenate(*arrays: Array, dimension: int) -> Array:
    return np.concatenate(arrays, dimension)


def stack(*arrays: Array, axis: int) -> Array:
    return np.stack(arrays, axis)


def cumsum(x: Array, *, axis: int, reverse: bool) -> Array:
    x = widen_half(np.flip(x, axis) if reverse else x)
    sums = np.cumsum(x, axis, dtype=x.dtype)
    sums = sums + sums.dtype.type(0)  # XLA begins with 0: a sum of -0 is 0
    return np.flip(sums, axis) if reverse else sums


def slice_(x: Array, *, start_indices: Any, limit_indices: Any, strides: Any) -> Array:
    steps = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, steps))]


def dynamic_slice(x: Array, *starts: Array, slice_sizes: Any) -> Array:
    bounds = zip(starts, slice_sizes, x.shape, strict=True)
    windows = [(min(max(int(start), 0), length - n), n) for start, n, length in bounds]
    return x[tuple(slice(start, start + n) for start, n in windows)]


def pad(x: Array, value: Array, *, padding_config: Any) -> Array:
    if any(min(each) < 0 for each in padding_config):
        return NotImplemented
    axes = [
        (before, n + max(n - 1, 0) * gap, after, gap)
        for n, (before, after, gap) in zip(x.shape, padding_config, strict=True)
    ]
    full = np.full([before + n + after for before, n, after, _ in axes], value, x.dtype)
    full[tuple(slice(before, before + n, gap + 1) for before, n, _, gap in axes)] = x
    return full


def split(x: Array, *, sizes: Any, axis: int) -> list[Array]:
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def iota(*, dtype: Any, shape: Any, dimension: int) -> Array:
    row_shape = [n if i == dimension else 1 for i, n in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(row_shape), shape)


def reduction(function: Callable[..., Array]) -> Compute:
    def compute(x: Array, *, axes: Any) -> Array:
        if not x.size:
            return NotImplemented
        return function(widen_half(x), axis=tuple(axes))

    return compute


def dot_general(
    a: Array, b: Array, *, dimension_numbers: Any, preferred_element_type: Any
) -> Array:
    result_dtype = np.dtype(preferred_element_type or a.dtype)
    # integer sums wrap at the width of the result, which NumPy may widen
    if result_dtype.kind in "iub" or a.dtype.kind in "iub" or b.dtype.kind in "iub":
        return NotImplemented
    sum_dtype = np.float32 if result_dtype.itemsize == 2 else result_dtype
    subscripts = einsum_subscripts(dimension_numbers, a.ndim, b.ndim)
    return np.einsum(subscripts, a.astype(sum_dtype), b.astype(sum_dtype), optimize=True)


def reduce_sum(x: Array, *, axes: Any) -> Array:
    dtype = None if is_float(x) else x.dtype
    total = np.sum(widen_half(x), axis=tuple(axes), dtype=dtype)
    # XLA begins with 0: a sum of -0 is 0
    return total + total.dtype.type(0)


def clamp(low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


# Functions that take one param, after their array.
ONE_PARAM: dict[str, tuple[Compute, str]] = {
    "rev": (np.flip, "dimensions"), "squeeze": (np.squeeze, "dimensions"),
    "tile": (np.tile, "reps"),
    "transpose": (np.transpose, "permutation"),
}  # fmt: skip
PRIMITIVES: dict[str, Compute] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract,
    "mul": np.multiply, "div": floats_only(np.true_divide), "neg": np.negative,
    "max": maximum, "min": minimum, "abs": np.abs, "sign": sign,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log,
    "log1p": np.log1p, "tanh": np.tanh, "logistic": ops.SIGMOID.numpy,
    "rsqrt": ops.RSQRT.numpy, "cbrt": floats_only(np.cbrt), "pow": floats_only(np.power),
    "rem": floats_only(np.fmod), "erf": ops.ERF.numpy, "erfc": ops.ERFC.numpy,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh,
    "cosh": np.cosh, "atan2": np.arctan2, "sqrt": np.sqrt,
    "square": np.square, "floor": np.floor, "ceil": np.ceil,
    "is_finite": np.isfinite, "integer_pow": integer_pow, "round": round_,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert, "select_n": select, "clamp": clamp,
    "convert_element_type": convert, "copy": np.copy, "copy_p": np.copy,
    "broadcast_in_dim": broadcast_in_dim, "reshape": reshape,
    "concatenate": concatenate, "stack": stack, "cumsum": cumsum,
    "slice": slice_, "dynamic_slice": dynamic_slice, "pad": pad, "split": split, "iota": iota,
    "dot_general": dot_general, "reduce_sum": reduce_sum, "reduce_prod": reduction(np.prod),
    "reduce_max": reduction(np.max), "reduce_min": reduction(np.min),
    "reduce_and": reduction(np.bitwise_and.reduce), "reduce_or": reduction(np.bitwise_or.reduce),
}  # fmt: skip
