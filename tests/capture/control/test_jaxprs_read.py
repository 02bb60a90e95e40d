"""Functions that jax can trace and no stand-in sees through: read by their jaxprs, with branches by
values, loops of known lengths, and custom functions inside of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...conftest import BACKENDS
from ...dtypes import names
from ...harness.own_library import assert_as_in
from ...support.sampling import sample

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
pytestmark = pytest.mark.needs("jax")
X = np.array([[0.5, -1.25, 2.0], [1.5, 0.25, -0.75]], np.float32)


@jax.custom_vjp
def tripled(x: Any) -> Any:
    """round(x), whose slope is 3."""
    return jnp.sign(x) * jnp.floor(jnp.abs(x) + 0.5)


tripled.defvjp(lambda x: (tripled(x), None), lambda _, g: (3 * g,))


def root_or_double(x: Any) -> Any:
    return lax.cond(jnp.sum(x) > 100, lambda x: jnp.sqrt(x - 100), lambda x: 2 * x, x)


def by_bits(x: Any) -> Any:
    n = (x * 4).astype("int32")
    shifted = jnp.left_shift(n, 3) ^ jnp.right_shift(n, 1) | lax.shift_left(n, jnp.int32(2))
    parted = jnp.unpackbits(abs(n).astype("uint8")).astype("int32").sum() & 12
    return x * (shifted & ~n) + lax.shift_right_arithmetic(n, jnp.int32(1)) * parted


def by_places_and_shapes(x: Any) -> Any:
    part = lax.slice(x, (0, 1), (2, 3), (1, 2)) * lax.argmax(x, 1, jnp.int32)[:, None]
    either = lax.reduce_or(x > 1, (0,)) ^ lax.reduce_and(x > -1, (0,))
    part = part + lax.argmin(x, 0, jnp.int32)[::2] * jnp.shape(x)[1] + jnp.ndim(x) * either[:2]
    return lax.squeeze(jnp.astype(part, "float16")[None], (0,)).astype(x.dtype)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "bits": by_bits,
    "places and shapes": by_places_and_shapes,
    "root or double": root_or_double,
    "one of three": lambda x: lax.switch(
        jnp.argmax(x[0]), [jnp.sin, jnp.log, lambda x: x * x], x
    ),
    "mapped branch": lambda x: jax.vmap(
        lambda r: lax.cond(r[0] > 1, lambda r: jnp.log(r[0]), lambda r: r[1], r)
    )(x),
    "a way that is not taken": lambda x: jax.vmap(
        lambda r: lax.cond(jnp.sum(x) > 100, lambda r: jnp.sqrt(r - 100), jnp.exp, r)
    )(x),
    "recurrence": lambda x: lax.scan(lambda c, r: (0.5 * c + r, c * r), x[0], x, reverse=True),
    "horner": lambda x: lax.fori_loop(0, 2, lambda i, c: c * x[i] + i, x[0]),
    "chosen rows": lambda x: jax.vmap(lambda r: lax.dynamic_slice(r, (jnp.argmax(r),), (2,)))(x),
    "put and added": lambda x: jax.vmap(
        lambda r: r.at[jnp.argmin(r)].set(7.0).at[jnp.array([0, 0, 5])].add(r)
    )(x),
    "filled outside": lambda x: jax.vmap(
        lambda r: r.at[jnp.array([0, 9])].get(mode="fill", fill_value=7.0)
    )(x),
    "two largest": lambda x: jax.vmap(lambda r: lax.top_k(r, 2)[0])(x),
    "mapped custom": lambda x: jax.vmap(lambda r, s: tripled(r) * s, (0, None))(x, x[0]),
    "custom in a loop": lambda x: lax.scan(
        lambda c, r: (tripled(c) + r, tripled(c * r)), x[0], x
    )[1],
    "custom in a branch": lambda x: lax.cond(
        jnp.sum(x) > 0, lambda x: tripled(x) * x, jnp.log, x
    ),
    "slope of custom": lambda x: jax.grad(lambda y: jnp.sum(tripled(y) * y))(x),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_jaxpr_says_is_computed_everywhere_with_its_gradient(
    name: str, backend: Any
) -> None:
    assert_as_in("jax", FUNCTIONS[name], X, backend=backend, atol=1e-6)


# Functions that the dialect has no row for; matrices: `tests/capture/names`.
WITHOUT_ROWS = """
lax.cummax lax.cummin lax.cumprod lax.cumsum lax.dot lax.expand_dims lax.index_in_dim lax.reshape
lax.round lax.slice_in_dim nn.elu nn.leaky_relu nn.log_sigmoid nn.sparse_sigmoid nn.squareplus
nn.standardize numpy.array_split numpy.average numpy.broadcast_arrays numpy.diag numpy.diagflat
numpy.diagonal numpy.diff numpy.divmod numpy.fmax numpy.fmin numpy.hsplit numpy.pad numpy.piecewise
numpy.tensordot numpy.unstack numpy.vsplit scipy.linalg.solve scipy.special.polygamma
"""


def test_a_function_without_a_row_means_what_jax_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")  # the comparison with jax is here
    functions = {name: attrgetter(name)(jax) for name in WITHOUT_ROWS.split()}
    with jax.enable_x64(True):
        ways = sample(names.first_ways("jax", functions), 1 / 6)
        outcome = names.compare("jax", ways, functions)
    assert not outcome.differing
    assert not outcome.refused, outcome.refused
    assert len(outcome.names) == len(ways)


def test_a_loop_that_carries_what_is_no_tensor_here_is_unrolled() -> None:
    def count(x: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            y, n = carry
            return (jnp.sin(y) * 0.9 + n.astype(y.dtype), n + jnp.uint32(1)), None

        return lax.scan(step, (x, jnp.uint32(0)), length=30)[0][0]

    captured = xg.function(count, native=False)
    np.testing.assert_allclose(captured(X), count(jnp.asarray(X)), rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.scan(lambda c, _: (jnp.sin(c + x[0]), None), x[1], length=9000)[0],
        lambda x: lax.fori_loop(0, 9000, lambda i, c: jnp.sin(c) + i % 2, x),
    ],
    ids=["scan", "fori_loop"],
)
def test_a_long_loop_is_one_op(function: Callable[..., Any]) -> None:
    captured = xg.function(function, native=False)
    assert_as_in("jax", function, X, of=captured, backend=BACKENDS["jax"], atol=1e-6)
    assert "scan(" in xg.show(captured)


# Convolutions, windows and determinants in code that is read by its jaxpr.


RNG = np.random.default_rng(3)
PICTURES = RNG.normal(size=(2, 8, 8, 4)).astype(np.float32)
KERNELS = RNG.normal(size=(3, 3, 2, 6)).astype(np.float32)
MATRICES = (RNG.normal(size=(4, 4, 4)) + 3 * np.eye(4)).astype(np.float32)
LAYOUT = ("NHWC", "HWIO", "NHWC")


@jax.custom_vjp
def step(x: Any) -> Any:
    """1 above zero, whose slope is a triangle."""
    return jnp.where(x > 0, 1.0, 0.0)


step.defvjp(lambda x: (step(x), x), lambda x, g: (g * jnp.maximum(1 - jnp.abs(x), 0),))


def network(x: Any, w: Any) -> Any:
    def of_one(picture: Any) -> Any:
        y = lax.conv_general_dilated(
            picture[None], w, (2, 1), "SAME", rhs_dilation=(1, 2), feature_group_count=2,
            dimension_numbers=LAYOUT,
        )  # fmt: skip
        y = step(y) * y
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")[0]

    return jax.vmap(of_one)(x)


def pooled(
    reduce: Any, start: float, strides: tuple[int, ...] = (2, 2, 1), padding: Any = "SAME"
) -> Callable[[Any], Any]:
    def of_one(picture: Any) -> Any:
        return lax.reduce_window(picture, start, reduce, (3, 3, 1), strides, padding)

    return jax.vmap(of_one)


def convolved(x: Any, w: Any) -> Any:
    """Two groups of channels, with borders of which one cuts."""
    return lax.conv_general_dilated(
        x, w, (2, 1), ((2, 1), (-1, 0)), rhs_dilation=(1, 2), feature_group_count=2,
        dimension_numbers=LAYOUT,
    )  # fmt: skip


def in_parts(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 2), ((1, 2), (0, 1)), lhs_dilation=(2, 1), batch_group_count=2,
        dimension_numbers=LAYOUT,
    )  # fmt: skip


def pulled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients that jax's own derivative gives, behind one another."""

    def gradients(*arrays: Any) -> Any:
        result, pull = jax.vjp(function, *arrays)
        return jnp.concatenate([each.ravel() for each in pull(jnp.cos(result) + result)])

    return gradients


FUNCTIONS_WINDOWS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "network": (network, (PICTURES, KERNELS)),
    "largest": (pooled(lax.max, -np.inf), (PICTURES,)),
    "smallest": (pooled(lax.min, np.inf), (PICTURES,)),
    "sums": (pooled(lax.add, 0.0), (PICTURES,)),
    "parts of the batch": (in_parts, (PICTURES, KERNELS[:, :, [0, 1, 0, 1]])),
    "det": (jax.vmap(lambda a: jnp.linalg.det(a) * a[0, 0]), (MATRICES,)),
    "slogdet": (jax.vmap(lambda a: jnp.linalg.slogdet(a)[1] - a[0, 0]), (MATRICES,)),
}
TIES = np.round(PICTURES)
DERIVED: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    # Without equal elements, of which jax takes two at the border: its known fault.
    "largest": (pooled(lax.max, -np.inf), (PICTURES,)),
    "largest, apart": (pooled(lax.max, -np.inf, (4, 1, 1), "VALID"), (TIES,)),
    "smallest": (pooled(lax.min, np.inf, padding=((2, 0), (1, 1), (0, 0))), (TIES,)),
    "sums": (pooled(lax.add, 0.0), (PICTURES,)),
    "groups": (convolved, (PICTURES, KERNELS)),
    "parts of the batch": (in_parts, (PICTURES, KERNELS[:, :, [0, 1, 0, 1]])),
}


@pytest.mark.parametrize("name", FUNCTIONS_WINDOWS)
def test_it_means_what_it_means_in_jax(name: str) -> None:
    function, arrays = FUNCTIONS_WINDOWS[name]
    assert_as_in("jax", function, *arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DERIVED)
def test_jaxs_own_gradient_means_what_it_means_in_jax(name: str, dtype: str) -> None:
    function, arrays = DERIVED[name]
    with jax.enable_x64(dtype == "float64"):
        given = [array.astype(dtype) for array in arrays]
        assert_as_in("jax", pulled(function), *given, atol=1e-4)


def test_reshaping_in_another_order_of_the_axes_moves_them() -> None:
    assert_as_in("jax", lambda x: lax.reshape(x, (8, 64), (3, 1, 0, 2)) ** 2, PICTURES)


@pytest.mark.parametrize("axis", [1, 2])
def test_determinants_of_matrices_along_other_axes_are_right_or_refused(axis: int) -> None:
    function = jax.vmap(lambda a: jnp.linalg.det(a) * a[0, 0], in_axes=axis)
    try:
        found = xg.function(function, native=False)(MATRICES)
    except xg.TraceError:
        return
    np.testing.assert_allclose(found, function(MATRICES), rtol=1e-4)


@pytest.mark.parametrize("reduce", [lax.reduce_and, lax.reduce_or])
def test_a_reduction_of_integers_joins_their_bits_or_is_refused(reduce: Callable[..., Any]) -> None:
    def rule(grad_out: Any, tin: Any) -> Any:
        return grad_out * reduce(tin.astype(jnp.int32), (0,))

    function = xg.function(lambda x: 2 * x, rule)
    tin = jnp.array([6.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it runs as written
        (found,) = jax.vjp(function, tin)[1](jnp.ones(2))
    np.testing.assert_array_equal(found, rule(jnp.ones(2), tin))
