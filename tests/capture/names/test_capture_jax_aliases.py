"""Every captured name of `jax.numpy`, `jax.nn`, `jax.lax` and `jax.scipy.special` means what JAX
means by it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...support import sampling

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.needs("jax")

X = np.array([[-2.3, -1.0, -0.5, -0.0], [0.0, 0.3, 0.5, 1.0], [1.7, 2.5, 3.0, 0.9]])
Y = np.array([[0.5, -1.5, 2.0, 1.0], [2.0, 0.7, -0.5, 3.0], [1.0, 2.5, 0.1, -2.0]])


def logic(x: Any, y: Any) -> tuple[Any, ...]:
    return x > 0, y > 0


def integers(x: Any, y: Any) -> tuple[Any, ...]:
    return (x * 4).astype("int32"), 3


def shifted(x: Any, y: Any) -> tuple[Any, ...]:
    return (x * 4).astype("int32"), np.int32(3)


def above_zero(x: Any, y: Any) -> tuple[Any, ...]:
    return abs(x) + 0.5, y


def two_matrices(x: Any, y: Any) -> tuple[Any, ...]:
    return x, y.T


def two_rows(x: Any, y: Any) -> tuple[Any, ...]:
    return x[0], y[1]


def mask_and_two(x: Any, y: Any) -> tuple[Any, ...]:
    return x > 0, x, y


def positive(x: Any, y: Any) -> tuple[Any, ...]:
    return (x @ x.T + np.eye(3),)


def system(x: Any, y: Any) -> tuple[Any, ...]:
    return (*positive(x, y), y)


# What a name is called with, by name: where one array is not enough, or not the right one.
def jax_max() -> Any:
    return jax.lax.max


def kernels(x: Any, y: Any) -> tuple[Any, ...]:
    return x[None, None], y[None, None, :2, :3], (1, 2), "SAME"


ONE: dict[str, Any] = {
    "packbits": lambda x, y: (x > 0,), "unpackbits": lambda x, y: ((abs(x) * 40).astype("uint8"),),
    "conv": kernels, "conv_general_dilated": kernels, "convolve": two_rows,
    "conv_transpose": lambda x, y: (x[None, :, :, None], y[:2, :3, None, None], (2, 2), "SAME"),
    "conv_with_general_padding": lambda x, y: (
        x[None, None], y[None, None, :2, :3], (1, 2), ((1, 0), (0, 2)), None, (2, 1)
    ),
    "reduce_window": lambda x, y: (x, -np.inf, jax_max(), (2, 2), (1, 2), "SAME"),
    **dict.fromkeys(("cholesky", "cho_factor", "det", "expm", "inv", "pinv", "slogdet"), positive),
    **dict.fromkeys(("cond", "eigvalsh", "lu", "lu_factor"), positive),
    "lu_solve": lambda x, y: ((positive(x, y)[0], np.array([0, 2, 2], np.int32)), y),
    "solve": system, "solve_triangular": system,
    "cho_solve": lambda x, y: ((positive(x, y)[0], False), y),
    "triangular_solve": lambda x, y: (*positive(x, y), y.T),
    "astype": lambda x, y: (x, "float32"), "batch_matmul": lambda x, y: (x[None], y.T[None]),
    "broadcast_arrays": lambda x, y: (x, y[0]), "broadcast_to": lambda x, y: (x[0], (3, 4)),
    "clamp": lambda x, y: (-1.0, x, y), "clip": lambda x, y: (x, -0.5, 0.75),
    "concat": lambda x, y: ([x, y],), "concatenate": lambda x, y: ([x, y], 1),
    "convert_element_type": lambda x, y: (x, "float32"), "dot": two_matrices,
    "einsum": lambda x, y: ("ij,kj->ik", x, y), "expand_dims": lambda x, y: (x, (0, 2)),
    "flip": lambda x, y: (x, 1), "fori_loop": lambda x, y: (0, 3, lambda i, v: v * y + i, x),
    "full_like": lambda x, y: (x, 0.25), "index_in_dim": lambda x, y: (x, 1),
    "integer_pow": lambda x, y: (x, 3), "logit": lambda x, y: (abs(x) / 4,),
    "matmul": two_matrices, "moveaxis": lambda x, y: (x, 0, 1), "ndtri": lambda x, y: (abs(x) / 4,),
    "outer": two_rows, "pad": lambda x, y: (x, ((1, 0), (0, 2))),
    "percentile": lambda x, y: (x, 30.0), "permute_dims": lambda x, y: (x, (1, 0)),
    "piecewise": lambda x, y: (x, [x > 0, x > 1], [1.0, lambda v: v * v, 0.5]),
    "polygamma": lambda x, y: (1, abs(x) + 0.5), "pow": above_zero, "power": above_zero,
    "float_power": above_zero, "quantile": lambda x, y: (x, 0.3), "repeat": lambda x, y: (x, 2, 0),
    "reshape": lambda x, y: (x, (4, 3)), "rev": lambda x, y: (x, (1,)),
    "roll": lambda x, y: (x, 2), "select": lambda x, y: ([x > 1, x > 0], [x, y]),
    "slice_in_dim": lambda x, y: (x, 0, 2), "stack": lambda x, y: ([x, y],),
    "swapaxes": lambda x, y: (x, 0, 1), "take": lambda x, y: (x, np.array([0, 5])),
    "tensordot": lambda x, y: (x, y.T, 1), "tile": lambda x, y: (x, (2, 1)),
    "transpose": lambda x, y: (x, (1, 0)), "where": mask_and_two, "vdot": lambda x, y: (x, y),
    "xlog1py": above_zero, "xlogy": above_zero, "digamma": lambda x, y: (abs(x) + 0.5,),
    "gammaln": lambda x, y: (abs(x) + 0.5,), "lgamma": lambda x, y: (abs(x) + 0.5,),
    "squeeze": lambda x, y: (x[None], 0), "glu": lambda x, y: (x,),
    "split": lambda x, y: (x, [1, 3], 1), "array_split": lambda x, y: (x, 3, 1),
    "hsplit": lambda x, y: (x, 2), "vsplit": lambda x, y: (x, [1]),
    "take_along_axis": lambda x, y: (x, np.array([[0, 3], [1, -1], [2, 2]]), 1),
    "put_along_axis": lambda x, y: (x, np.array([[0, 3], [1, 1], [2, 2]]), 0.5, 1, False),
    "one_hot": lambda x, y: ((x * 2).astype("int32"), 4), "top_k": lambda x, y: (x, 2),
    "segment_sum": lambda x, y: (x, (y[:, 0] > 0.7).astype("int32"), 2),
}  # fmt: skip
LAX: dict[str, Any] = {
    "argmax": lambda x, y: (x, 1, "int32"), "argmin": lambda x, y: (x, 0, "int32"),
    "slice": lambda x, y: (x, (0, 1), (3, 4), (2, 1)),
    "concatenate": lambda x, y: ([x, y], 1), "select": mask_and_two, "select_n": mask_and_two,
    "reduce_and": lambda x, y: (x > 0, (0,)), "reduce_or": lambda x, y: (x > 0, (1,)),
    "reduce_sum": lambda x, y: (x, (0,)), "reduce_prod": lambda x, y: (x, (1,)),
    "reduce_max": lambda x, y: (x, (0, 1)), "reduce_min": lambda x, y: (x, (1,)),
    "polygamma": lambda x, y: (1.0, abs(x) + 0.5), "shift_left": shifted,
    "shift_right_arithmetic": shifted, "squeeze": lambda x, y: (x[None], (0,)), "clamp": lambda x,
    y: (-1.0, x, 1.0),
    "digamma": lambda x, y: (abs(x) + 0.5,), "rsqrt": lambda x, y: (abs(x) + 0.5,),
    "dot": two_matrices, "full_like": lambda x, y: (x, 0.25),
    "bitwise_and": logic, "bitwise_or": logic, "bitwise_xor": logic,
    "bitwise_not": lambda x, y: (x > 0,),
}  # fmt: skip
KINDS: dict[str, Any] = {
    "logical_and": logic, "logical_or": logic, "logical_xor": logic,
    **dict.fromkeys(("logical_not", "all", "any"), lambda x, y: (x > 0,)),
    "bitwise_and": integers, "bitwise_or": integers, "bitwise_xor": integers,
    "left_shift": integers, "right_shift": integers, "bitwise_left_shift": integers,
    "bitwise_right_shift": integers, "shift_left": integers, "shift_right_arithmetic": integers,
    "bitwise_not": lambda x, y: integers(x, y)[:1], "invert": lambda x, y: integers(x, y)[:1],
    "bitwise_invert": lambda x, y: integers(x, y)[:1],
}  # fmt: skip
BINARY = frozenset({
    "add", "subtract", "sub", "multiply", "mul", "divide", "div", "true_divide", "maximum",
    "minimum",
    "max", "min", "fmax", "fmin", "floor_divide", "remainder", "rem", "mod", "fmod", "divmod",
    "copysign", "nextafter", "hypot", "arctan2", "atan2", "logaddexp", "less", "lt", "less_equal",
    "le", "greater",
    "gt", "greater_equal", "ge", "equal", "eq", "not_equal", "ne", "heaviside", "vecdot",
})  # fmt: skip


# They are captured by the jaxpr of the function that calls them.
WITHOUT_ROWS = """
lax.argmax lax.argmin lax.conv lax.conv_general_dilated lax.conv_transpose
lax.conv_with_general_padding lax.cummax lax.cummin lax.cumprod lax.cumsum lax.dot lax.expand_dims
lax.fori_loop lax.index_in_dim lax.linalg.cholesky lax.linalg.triangular_solve lax.polygamma
lax.reduce_window lax.reshape lax.round lax.select_n lax.slice lax.slice_in_dim nn.elu nn.leaky_relu
nn.log_sigmoid nn.sparse_sigmoid nn.squareplus nn.standardize numpy.array_split numpy.average
numpy.broadcast_arrays numpy.convolve numpy.diag numpy.diagflat numpy.diagonal numpy.diff
numpy.divmod numpy.fmax numpy.fmin numpy.hsplit numpy.linalg.cholesky numpy.linalg.cond
numpy.linalg.eigvalsh numpy.linalg.matrix_norm numpy.linalg.slogdet numpy.linalg.vector_norm
numpy.pad numpy.piecewise numpy.put_along_axis numpy.take_along_axis numpy.tensordot numpy.unstack
numpy.vsplit ops.segment_sum scipy.linalg.cho_factor scipy.linalg.cho_solve scipy.linalg.cholesky
scipy.linalg.det scipy.linalg.inv scipy.linalg.lu scipy.linalg.lu_factor scipy.linalg.lu_solve
scipy.linalg.solve scipy.linalg.solve_triangular scipy.special.polygamma
"""


def table() -> list[tuple[str, Any]]:
    """Return every captured function with its name; one that stays as it is records nothing."""

    from multigrad.backend.discovery import in_use
    from multigrad.capture.dialect import find_dialect

    in_use()
    dialect = find_dialect("jax")
    assert dialect is not None
    recorded = [f for f, does in dialect.names.aliases.items() if does is not f]
    recorded += [attrgetter(name)(jax) for name in WITHOUT_ROWS.split()]
    named = [(f"{f.__module__}.{f.__name__}", f) for f in recorded]
    # Complex numbers: `test_complex_numbers.py`; resizing: `test_convolutions_jax.py`.
    left_out = [f for name, f in named if "fft" in name or "image" in name]
    left_out.append(jax.lax.complex)
    return [row for row in named if row[1] not in left_out]


def arguments_of(name: str) -> Callable[[Any, Any], tuple[Any, ...]] | None:
    """Return what makes a function's arguments of two arrays; None: the first is enough."""
    short = name.rpartition(".")[2]
    if "lax" in name and short in LAX:
        return LAX[short]
    if short in KINDS:
        return KINDS[short]
    if short in BINARY and not (name.startswith("jax.numpy") and short in ("max", "min")):
        return lambda x, y: (x, y)
    return ONE.get(short)


def summed(result: Any, weights: list[Any]) -> Any:
    """Return any result as one number in which each element has a weight of its own."""
    results = result if isinstance(result, list | tuple) else [result]
    total: Any = 0.0
    for each, weight in zip(results, weights, strict=True):
        if np.shape(weight) == ():
            total = total + each * weight
            continue
        number = jnp.where(each, 1.0, 0.0) if "bool" in str(each.dtype) else each * 1.0
        finite = jnp.where(jnp.isnan(number), 77.0, jnp.clip(number, -1e6, 1e6))
        total = total + jnp.sum(finite * weight)
    return total


def call(sample: Any, function: Any, x: Any, y: Any) -> list[Any]:
    """Call a captured function on its sample of arguments, which `arguments_of` names."""
    result = function(*((x,) if sample is None else sample(x, y)))
    return list(result) if isinstance(result, list | tuple) else [result]


def results_of(functions: list[tuple[str, Any]]) -> list[list[Any]]:
    """Return what JAX gives for each: one program for all of them."""
    return jax.jit(lambda x, y: [call(arguments_of(name), f, x, y) for name, f in functions])(X, Y)


def compare(name: str, function: Any, results: list[Any]) -> str:
    """Return how a captured name differs from JAX's own, or an empty string."""
    weights = [np.cos(np.arange(np.size(r))).reshape(np.shape(r)) for r in results]
    wanted = np.full_like(Y, float(summed([np.asarray(r) for r in results], weights)))
    # Looked up here: a capture goes through all that its function can reach.
    sample = arguments_of(name)

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 0.0 * grad_out + summed(call(sample, function, tin, grad_out), weights)

    try:
        given = xg.register("under test", override=True, native=False)(rule)(None, Y, X)
    except xg.MultigradError as error:
        return str(error)
    close = np.allclose(
        given, wanted, rtol=1e-6 if "float32" in str(np.asarray(results[0]).dtype) else 1e-11
    )
    return "" if close else f"gives {given[0, 0]}, JAX {wanted[0, 0]}"


def test_every_captured_name_gives_jaxs_numbers_with_jaxs_defaults() -> None:
    drawn = sampling.sample(table(), 1 / 6)
    with jax.enable_x64(True):
        parts = [drawn[i : i + 40] for i in range(0, len(drawn), 40)]
        given = [result for part in parts for result in results_of(part)]
        pairs = zip(drawn, given, strict=True)
        wrong = {name: compare(name, f, results) for (name, f), results in pairs}
    assert len(table()) > 250
    assert not {name: how for name, how in wrong.items() if how}
