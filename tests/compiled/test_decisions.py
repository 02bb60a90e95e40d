"""A decision falls the same everywhere: what is rounded, compared, cast or made an index has the
bits of IEEE 754, in eager and in compiled code. All numbers are read out of code that ran.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

Array: TypeAlias = np.ndarray[Any, Any]

HUGE = np.float32(1e9)
STEP = np.array(0.19471888, np.float32)


def near(ties: Array, count: int = 8) -> Array:
    """Return float32 numbers, and those next to them on both sides."""
    above = below = ties.astype(np.float32)
    rows = [above]
    for _ in range(count):
        above, below = (
            np.nextafter(above, np.float32(np.inf)),
            np.nextafter(below, -np.float32(9e9)),
        )
        rows += [above, below]
    return np.concatenate(rows)


X = near((np.arange(-120, 120) + 0.5) * float(STEP))  # x / STEP is near a tie
V = near((np.arange(1, 241) / 16.0) ** 2)  # so are 16 roots of v
Y = (np.random.default_rng(0).standard_normal(X.size) * 3).astype(np.float32)
Z = (np.round(X / STEP) + np.float32(0.5) - X * Y).astype(np.float32)  # so is x * y + z


def decisions(lib: Any, x: Any, y: Any, z: Any, v: Any, step: Any) -> dict[str, Any]:
    """Return decisions, computed op by op: by NumPy, or captured from `xg.xp`."""
    return {
        # XLA, and a graph of TensorFlow, multiply by a reciprocal.
        "round, by a tensor": lib.round(x / step),
        "round, by a number": lib.round(x / 0.19471888),
        "floor": lib.floor(x / 3.0),
        "floor_divide": lib.floor_divide(x, step),
        "remainder": lib.remainder(x, step),
        "compare": lib.where(x / step > 1.5, 1.0, y),
        "step of the largest": lib.round(x / (lib.max(lib.abs(x)) / 127.0)),
        "quotient over": lib.floor(x / y / step),
        "over a quotient": lib.floor(x / (y / step)),
        # LLVM rounds a product and a sum once.
        "multiply and add": lib.round(x * y + z),
        "subtract from": lib.floor(z - x * y),
        "two products": lib.sign(x * step + y * step),
        "square": lib.floor(lib.square(x) - z * 100.0),
        "through where": lib.round(lib.where(x > 0, x * y, z) + z),
        "through reshape": lib.round(lib.reshape(lib.reshape(x, (-1, 2)) * 0.37, (-1,)) + z),
        "index": lib.argmax(lib.stack([x * y + z, lib.round(x * y + z)]), axis=0) * 1.0,
        # Constants are regrouped.
        "magic number": lib.floor((x + 12582912.0) - 12582912.0),
        "sums": lib.floor((x + 1.1 + 2.3) * 100.0),
        "factors": lib.floor(x * 3.1 * 2.3 * 10.0),
        "there and back": lib.floor(x / 3.0 * 3.0 * 50.0),
        # Roots are MKL's in torch; a number over a tensor is rounded twice there.
        "root": lib.where(lib.sqrt(v) >= lib.round(lib.sqrt(v) * 16.0) / 16.0, 1.0, y),
        "over a root": lib.floor(y / lib.sqrt(v) * 64.0),
        "one over a root": lib.floor(1.0 / lib.sqrt(v) * 4096.0),
        "number over": lib.floor(3.3 / v * 1000.0),
        "reciprocal": lib.floor(lib.reciprocal(v) * 4096.0),
        "powers": lib.floor(x**2 * 7.0) + lib.floor(v**0.5 * 16.0),
    }


def casts(x: Any, y: Any, z: Any, v: Any, step: Any) -> dict[str, Any]:
    """Return what is cast to integers and to 16 bits, which compilers keep in float32."""
    brief, half = xp.cast(x, xp.bfloat16), xp.cast(x, xp.float16)
    return {
        "to int": xp.cast(xp.cast(x / step, xp.int32), xp.float32),
        "to bfloat16": xp.cast(xp.cast(x * y, xp.bfloat16), xp.float32) * z,
        "to float16": xp.floor(xp.cast(xp.cast(x / step, xp.float16), xp.float32) * 16.0),
        "product": xp.floor(xp.cast(brief * xp.cast(y, xp.bfloat16), xp.float32) * z),
        "round": xp.cast(xp.round(brief / xp.cast(step, xp.bfloat16)), xp.float32),
        "compare": xp.where(half * xp.cast(y, xp.float16) > xp.cast(z, xp.float16), 1.0, x),
    }


def casts_by_numpy(x: Array, y: Array, z: Array, v: Array, step: Array) -> dict[str, Array]:
    single, half, bfloat16 = np.float32, np.float16, ml_dtypes.bfloat16
    ratio = x.astype(bfloat16) / step.astype(bfloat16)
    product = x.astype(bfloat16) * y.astype(bfloat16)
    return {
        "to int": (x / step).astype(np.int32).astype(single),
        "to bfloat16": (x * y).astype(bfloat16).astype(single) * z,
        "to float16": np.floor((x / step).astype(half).astype(single) * single(16)),
        "product": np.floor(product.astype(single) * z),
        "round": np.round(ratio.astype(single)).astype(bfloat16).astype(single),
        "compare": np.where(x.astype(half) * y.astype(half) > z.astype(half), single(1), x),
    }


def ways_of(backend: Any) -> Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return by name how a function of tensors is run."""
    ways: dict[str, Any] = {"eager": lambda f: f}
    if backend.name == "jax":
        import jax

        def scanned(f: Callable[..., Any]) -> Callable[..., Any]:
            def turns(*given: Any) -> Any:
                return jax.lax.scan(lambda _, __: (0, jax.vjp(f, *given)[0]), 0, None, 1)[1]

            return jax.jit(turns)

        ways |= {"jit": jax.jit, "vjp in a scan": scanned}
    if backend.name == "tensorflow":
        import tensorflow as tf

        ways |= {"function": tf.function, "XLA": lambda f: tf.function(f, jit_compile=True)}
    if backend.name == "torch" and shutil.which("g++"):
        import torch

        ways["inductor"] = lambda f: torch.compile(f, fullgraph=True)
    return ways


def differing(
    backend: Any,
    function: Any,
    expected: Mapping[str, Array],
    *given: Array,
    without: str = "",
) -> dict[tuple[str, str], int]:
    """Return by way and name how many numbers differ; NaN is one number."""
    arguments = [backend.array(each) for each in given]
    found = {}
    for way, run in ways_of(backend).items():
        if way == without:
            continue
        for name, values in run(function)(*arguments).items():
            values = backend.numpy(values).reshape(expected[name].shape)
            is_same = (values == expected[name]) | (np.isnan(values) & np.isnan(expected[name]))
            found[way, name] = int(np.sum(~is_same))
    return {place: count for place, count in found.items() if count}


@pytest.fixture
def given() -> tuple[Array, ...]:
    return X, Y, Z, V, STEP


@pytest.mark.always
def test_arithmetic_that_meets_a_decision_has_the_bits_of_ieee_754(
    backend: Any, given: tuple[Array, ...]
) -> None:
    function = xg.function(lambda *each: decisions(xp, *each))
    with np.errstate(all="ignore"):
        assert differing(backend, function, decisions(np, *given), *given) == {}


def test_casts_round_as_numpy_rounds(backend: Any, given: tuple[Array, ...]) -> None:
    with np.errstate(all="ignore"):
        assert differing(backend, xg.function(casts), casts_by_numpy(*given), *given) == {}


# --- quantizers and masks -------------------------------------------------------------------------


def of_steps(x: Any, step: Any) -> dict[str, Any]:
    """Return in steps the levels that quantizers take, each of which has a tie near x."""
    estimators = xg.estimators
    ends = 3.0 * step, 5.0 * step
    return {
        "lsq": estimators.lsq(x, step) / step,
        "lsq_plus": estimators.lsq_plus(x, step, ends[0]) / step,
        "pact": estimators.pact(x, 15.0 * step) / step,
        "dorefa": estimators.dorefa_activations(x / (15.0 * step), 4) * 15.0,
        "fake_quantize": estimators.fake_quantize(x, -ends[0], ends[1], 3) * 7.0 / (8.0 * step),
        "ste_floor": estimators.ste_floor(x / step + 0.5),
    }


@pytest.mark.always
def test_quantizers_take_the_same_levels(backend: Any) -> None:
    levels = {name: np.round(each) for name, each in of_steps(X, STEP).items()}
    np.testing.assert_array_equal(levels["lsq"], np.round(np.clip(X / STEP, -8.0, 7.0)))
    function = xg.function(lambda *given: {k: xp.round(v) for k, v in of_steps(*given).items()})
    assert differing(backend, function, levels, X, STEP) == {}


def test_a_quotient_is_that_of_ieee_754(backend: Any) -> None:
    x = np.random.default_rng(1).standard_normal(65536).astype(np.float32)
    is_it = xg.function(lambda x, y, step: {"it": xp.where(x / step == y, 1.0, 0.0)})
    assert differing(backend, is_it, {"it": np.ones_like(x)}, x, x / STEP, STEP) == {}


@pytest.mark.needs("torch")
def test_a_root_is_that_of_ieee_754_where_torch_traces_and_compiles_no_kernel() -> None:
    import torch

    @xg.function
    def is_missed(x: Any) -> Any:
        return xp.where(xp.sqrt(x * x) != xp.abs(x), 1.0, 0.0)

    x = (np.random.default_rng(0).standard_normal(60_000) + 3).astype(np.float32)
    expected = (np.sqrt(x * x) != np.abs(x)).astype(np.float32)
    for backend in ("eager", "aot_eager"):
        found = torch.compile(lambda x: is_missed(x), backend=backend)(torch.tensor(x))
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.backends("jax")
def test_an_example_of_a_batch_decides_as_it_does_alone(backend: Any) -> None:
    import jax

    lsq: Any = xg.estimators.lsq
    expected = np.round(np.clip(X / STEP, -8.0, 7.0)) * STEP
    rows, steps = X.reshape(-1, 16), np.full_like(X, STEP).reshape(-1, 16)
    for axes, given in {
        (0, None): (rows, STEP),  # one step for all, of each example without axes
        (0, 0): (rows, steps[:, 0]),
        (None, 0): (X, STEP[None]),
    }.items():
        mapped = jax.vmap(lsq, axes)
        for run in (mapped, jax.jit(mapped)):
            np.testing.assert_array_equal(np.reshape(run(*given), X.shape), expected)
    same = jax.jit(jax.vmap(lsq, (0, None)))(rows, steps[0])  # of equal shapes, but in the batch
    np.testing.assert_array_equal(np.reshape(same, X.shape), expected)


@xg.custom_gradient
def gated(x: Any, step: Any) -> Any:
    """Let gradients pass where the next level is odd, as backward or a residual says."""
    ratio = x / step
    return x + step, lambda grad_out: (xp.where(xp.round(ratio) % 2.0 == 1.0, grad_out, 0.0), None)


def test_masks_of_backward_are_the_same(backend: Any) -> None:
    def gradient(x: Any, step: Any) -> dict[str, Any]:
        y, pull = xg.vjp(gated, x, step)
        return {"gradient": pull(y * 0.0 + 1.0)[0]}

    expected = {"gradient": np.where(np.round(X / STEP) % 2.0 == 1.0, np.float32(1), 0)}
    assert differing(backend, gradient, expected, X, STEP, without="inductor") == {}
