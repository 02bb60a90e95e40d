"""What a proof runs on jax several times is traced once and computed in NumPy: jax's numbers and
dtypes, and nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multigrad.core.backend.discovery import load_backend

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.needs("jax")

EDGES = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -3.0, np.inf, -np.inf, np.nan, 60.0]
DTYPES = ("float32", "float64", "float16", "bfloat16")
# Computed by jax itself, which compiles them.
OF_JAX = ("repeated", "sort", "gather", "to integers", "lgamma", "integers divided")


def functions() -> dict[str, Callable[..., Any]]:
    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        return carry * 0.5 + row, jnp.tanh(carry)

    return {
        "arithmetic": lambda x, y: (x + y * 2 - 1) / (y + 0.25) - jnp.square(x) + x**3 + x**-2,
        "extremes": lambda x, y: (jnp.maximum(x, y), jnp.minimum(x, y), jnp.clip(x, -1, 1)),
        "rounding": lambda x, y: (jnp.floor(x), jnp.ceil(y), jnp.round(x), jnp.sign(x)),
        "remainders": lambda x, y: (jnp.fmod(x, y), jnp.remainder(x, y)),
        "exponentials": lambda x, y: (jnp.exp(x), jnp.log1p(jnp.abs(y)), jnp.expm1(x), jnp.exp2(y)),
        "waves": lambda x, y: (jnp.tanh(x), jax.nn.sigmoid(y), jnp.sin(x), jnp.cos(y)),
        "inverse waves": lambda x, y: (jnp.arctan2(x, y), jnp.arcsinh(x), jnp.arctan(y)),
        "roots": lambda x, y: (jnp.sqrt(x), jax.lax.rsqrt(y), jnp.cbrt(x), jnp.power(x, y)),
        "gelu": lambda x, y: (jax.nn.gelu(x), jax.nn.gelu(y, approximate=False)),
        "softmax": lambda x, y: (jax.nn.softmax(x, -1), jax.nn.logsumexp(y, 0)),
        "tests": lambda x, y: (jnp.isfinite(x), x < y, (x >= 0) & (y != 0), ~(x == y)),
        "choices": lambda x, y: (jnp.where(x > 0, x, y), jax.nn.relu(x), jax.nn.leaky_relu(y)),
        "casts": lambda x, y: (x.astype("float16"), (y > 0).astype(x.dtype), x.astype("float32")),
        "sums": lambda x, y: (x.sum(), y.sum(0, keepdims=True), x.mean(1), jnp.var(y)),
        "reductions": lambda x, y: (x.max(), y.min(1), (x > 0).any(0), (y > 0).all(), x.prod(0)),
        "reductions of bits": lambda x, y: (
            jax.lax.reduce_and(jnp.arange(6, 8), (0,)),
            jax.lax.reduce_or(jnp.arange(5), (0,)),
        ),
        "cumulative": lambda x, y: (jnp.cumsum(x, 1), jax.lax.cumsum(y, 0, reverse=True)),
        "products": lambda x, y: (x @ y.T, jnp.einsum("ij,ij->i", x, y), jnp.outer(x[0], y[1])),
        "batches": lambda x, y: jnp.einsum("bij,bkj->bik", x.reshape(2, 2, 3), y.reshape(2, 2, 3)),
        "shapes": lambda x, y: (x.T.reshape(-1), jnp.stack([x, y], 1), jnp.split(y, 2, -1)[1]),
        "indices": lambda x, y: (x[1:, ::-1], x[..., None, 2], jnp.pad(y, ((1, 0), (0, 2)))),
        "joined": lambda x, y: (jnp.concatenate([x, y], 0), jnp.tile(x, 2)),
        "repeated": lambda x, y: jnp.repeat(y, 2, 1),
        "places": lambda x, y: jax.lax.dynamic_slice(x, (jnp.int32(1), jnp.int32(9)), (1, 2)),
        "counted": lambda x, y: x * jnp.arange(6, dtype=x.dtype) + jnp.ones_like(y),
        "a scan": lambda x, y: jax.lax.scan(step, y[0], x),
        "a scan from the end": lambda x, y: jax.lax.scan(step, y[0], x, reverse=True),
        "a loop": lambda x, y: jax.lax.fori_loop(0, 3, lambda i, c: c * 0.5 + i, x),
        "a branch": lambda x, y: jax.lax.cond(jnp.isnan(x).any(), jnp.tanh, lambda z: z * 2, y),
        "gradients": lambda x, y: jax.grad(
            lambda x, y: jnp.sum(jnp.tanh(x) * jax.nn.silu(y)), (0, 1)
        )(x, y),
        "second derivatives": lambda x, y: jax.vjp(jax.grad(lambda x: jnp.sum(x**3 * y)), x)[1](y),
        "a jitted function": lambda x, y: jax.jit(jnp.hypot)(x, y),
        "a mapped function": lambda x, y: jax.vmap(jnp.dot)(x, y),
        "sort": lambda x, y: jnp.sort(x, 1),
        "gather": lambda x, y: x[jnp.array([1, 0, 1]), jnp.array([0, 2, 1])],
        "to integers": lambda x, y: x.astype("int8"),
        "lgamma": lambda x, y: jax.lax.lgamma(jnp.abs(y) + 1),
        "integers divided": lambda x, y: jnp.arange(6) // 4 - jnp.arange(6) % 4,
    }


NAMES = [
    "arithmetic", "extremes", "rounding", "remainders", "exponentials", "waves", "inverse waves",
    "roots", "gelu", "softmax", "tests", "choices", "casts", "sums", "reductions", "cumulative",
    "reductions of bits",
    "products", "batches", "shapes", "indices", "joined", "places", "counted", "a scan",
    "a scan from the end", "a loop", "a branch", "gradients", "second derivatives",
    "a jitted function", "a mapped function", *OF_JAX,
]  # fmt: skip


def rehearsed(run: Callable[..., Any], arrays: list[Any]) -> Callable[..., Any]:
    rehearse = load_backend("jax").autodiff.rehearse
    assert rehearse is not None
    return rehearse(run, arrays)


def samples(dtype: Any) -> list[list[Any]]:
    numbers = np.random.default_rng(11)
    edges = np.resize(np.array(EDGES), 24)
    edges = np.stack([edges[:12], np.roll(edges, 5)[:12]])
    drawn = numbers.normal(size=(2, 12))
    return [[part.reshape(4, 3).T.copy().T.reshape(2, 6).astype(dtype) for part in each]
            for each in (drawn, edges)]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_rehearsed_has_jaxs_numbers_and_dtypes(name: str, dtype: str) -> None:
    run = functions()[name]
    with jax.enable_x64(dtype == "float64"):
        given = samples(jnp.dtype(dtype))
        again = rehearsed(run, given[0])
        for arrays in given:
            wanted, found = jax.tree.leaves(run(*map(jnp.asarray, arrays))), again(*arrays)
            for one, other in zip(wanted, jax.tree.leaves(found), strict=True):
                check_alike(np.asarray(one), np.asarray(other))


def check_alike(wanted: Any, found: Any) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
        return

    eps = float(jnp.finfo(wanted.dtype).eps)
    wide, other = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    scale = max(1.0, finite.max(initial=0.0) if wanted.dtype.itemsize == 2 else 1.0)
    np.testing.assert_allclose(other, wide, rtol=64 * eps, atol=32 * eps * scale)
    zero = (wide == 0) & (other == 0)
    np.testing.assert_array_equal(np.signbit(other[zero]), np.signbit(wide[zero]))


def test_a_tree_keeps_what_is_no_array() -> None:
    x = np.ones(3, np.float32)
    found = rehearsed(lambda x: {"y": (x * 2, None), "n": 2.5, "word": "w"}, [x])(x)
    assert found["n"] == 2.5 and found["word"] == "w" and found["y"][1] is None
    np.testing.assert_array_equal(found["y"][0], [2, 2, 2])


def test_what_branches_on_values_is_not_rehearsed() -> None:
    with pytest.raises(jax.errors.ConcretizationTypeError):
        rehearsed(lambda x: x * 2 if x.sum() > 0 else x, [np.ones(3, np.float32)])


def test_a_rehearsal_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import compiler

    compiled: list[str] = []
    name = next(n for n in ("backend_compile_and_load", "backend_compile") if hasattr(compiler, n))
    own = getattr(compiler, name)
    monkeypatch.setattr(compiler, name, lambda *a, **k: (compiled.append(name), own(*a, **k))[1])
    table = functions()
    arrays = [np.random.default_rng(3).normal(size=(2, 6)).astype(np.float32) for _ in range(2)]
    jax.clear_caches()
    for each in (name for name in NAMES if name not in OF_JAX):
        rehearsed(table[each], arrays)(*arrays)
        assert compiled == [], each
