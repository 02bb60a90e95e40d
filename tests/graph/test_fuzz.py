"""Random programs from the op table, on every installed backend, against float64 with a bound on
rounding.

90 programs by default; MULTIGRAD_PROGRAMS asks for more (`tox -e fuzz`: 20,000), MULTIGRAD_SEED
for others. A failure is shrunk and printed as the graph and the elements that differ. See
`multigrad_conformance/programs/`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import find, settings
from scipy import special

from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.graph import Graph, Node, make_node
from multigrad.core.ir.op import BOOL, INPUT, Op, Type
from multigrad.core.trace.xp import all as neutral
from multigrad_conformance.differences import regroups
from multigrad_conformance.oracles import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, finfo
from multigrad_conformance.programs.attributes import LEFT_OUT, TAKING_PART, takes_part
from multigrad_conformance.programs.generator import Program, programs
from multigrad_conformance.programs.interpreter import interpret
from multigrad_conformance.programs.kernels import elementwise as kernels
from multigrad_conformance.programs.running import QUIET, Mismatch, check_random, inputs_of

from ..conftest import BACKENDS, find_backend, is_installed, split_names

xp: Any = neutral
PROGRAMS = int(os.environ.get("MULTIGRAD_PROGRAMS", "90"))
SEED = int(os.environ.get("MULTIGRAD_SEED", "0"))
SHARD = min(PROGRAMS, 125)  # programs of one test, so that workers can share them
COMPILED = ("jax",)  # it compiles each op for each shape: a whole program is faster


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest) -> list[Any]:
    """The backends to compare: those asked for, or all that are there."""
    asked = split_names(request.config.getoption("--backends") or "") or list(BACKENDS)
    return [find_backend(name) for name in asked if is_installed(name)]


# --- the programs ---------------------------------------------------------------------------------


@pytest.mark.anywhere
@pytest.mark.parametrize("shard", range(-(-PROGRAMS // SHARD)))
def test_random_programs_give_the_numbers_of_the_interpreter(
    installed: list[Any], shard: int
) -> None:
    tally = check_random(installed, SEED + shard, SHARD, COMPILED)
    assert tally.programs == SHARD
    # Below any draw: a new op, or a number in any module, moves it.
    assert len(tally.ops) > len(TAKING_PART) / 3
    assert tally.compared >= 0.6 * tally.elements, "too much is left to rounding"


# --- every row takes part -------------------------------------------------------------------------


@pytest.mark.parametrize("op", ops.CALLABLE_OPS, ids=lambda op: op.name)
def test_every_row_takes_part_or_is_left_out_with_a_reason(op: Op) -> None:
    assert takes_part(op) or LEFT_OUT.get(op, "").strip(), (
        f"no program can use {op.name}: give its attributes {op.attrs} samples, or their kind a "
        "place in PICKS (multigrad_conformance/programs/attributes.py)"
    )


@pytest.mark.parametrize("op", TAKING_PART, ids=lambda op: op.name)
def test_programs_are_made_of_every_row(op: Op) -> None:
    def uses_it(program: Program) -> bool:
        return any(node.op is op for node in program.graph.nodes)

    program = find(
        programs(table=(op,), most_steps=4), uses_it, settings=settings(QUIET, max_examples=400)
    )
    assert interpret(program.graph, inputs_of(program), program.numpy_dtype)


@pytest.mark.backends("numpy", "torch")  # the interpreter is tested, which has no backend
def test_row_without_a_meaning_here_takes_part_by_its_own(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(kernels.KERNELS, ops.ATAN.name)
    tally = check_random([backend], 0, 30, COMPILED, table=(ops.ATAN, ops.MUL, ops.EXP))
    assert tally.ops[ops.ATAN.name] > 5
    assert tally.compared >= 0.6 * tally.elements


# --- it can fail ----------------------------------------------------------------------------------


def off_by_64_eps(native: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: native(x) * (1 + 64 * 2.0**-23)


def without_direction(native: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *, axis, reverse: native(x, axis=axis, reverse=False)


def not_smaller(native: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: ~native(x)


def with_zero_for_nan(native: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: xp.where(xp.isnan(native(a, b)), 0.0, native(a, b))


@pytest.mark.backends("numpy", "torch")  # the interpreter is tested, which has no backend
@pytest.mark.parametrize(
    ("op", "break_row"),
    [
        (ops.TANH, off_by_64_eps),
        (ops.CUMSUM, without_direction),
        (ops.ISNAN, not_smaller),
        (ops.HYPOT, with_zero_for_nan),
    ],
    ids=lambda value: getattr(value, "name", None) or value.__name__,
)
def test_row_that_is_broken_on_one_backend_is_found_and_the_program_shrunk(
    backend: Any, monkeypatch: pytest.MonkeyPatch, op: Op, break_row: Callable[..., Any]
) -> None:
    rows = load_backend(backend.name).kernels.rows
    monkeypatch.setitem(rows, op, break_row(rows[op]))  # type: ignore[arg-type]
    with pytest.raises(Mismatch) as failure:
        check_random([backend], 0, 200, COMPILED, table=(op, ops.ADD, ops.CONCATENATE, ops.GT))
    message = str(failure.value)
    assert message.startswith(f"{backend.name}, output ")
    assert f"= {op.name}(" in message
    assert not hasattr(failure.value, "__notes__"), "Hypothesis shows the program again, at length"
    steps = [line for line in message.splitlines() if line.lstrip().startswith("%")]
    assert len(steps) <= 5, message


def test_interpreter_knows_what_cancels_and_what_roundings_decide() -> None:
    x = make_node(ops.INPUT, (), {"name": "tin"}, INPUT)
    power = make_node(ops.EXP, (x,), {}, INPUT)
    back = make_node(ops.SUB, (make_node(ops.ADD, (power, x), {}, INPUT), x), {}, INPUT)
    mask = make_node(ops.GT, (power, back), {}, Type("tensor", BOOL, INPUT.shape))
    rest = make_node(ops.RECIPROCAL, (make_node(ops.SUB, (power, back), {}, INPUT),), {}, INPUT)
    jump = make_node(ops.THRESHOLD, (back,), {"threshold": math.e, "default": 20.0}, INPUT)
    graph = Graph("cancels", (x,), (back, mask, rest, jump))
    numbers = np.array([1e-6, 1.0, 1e4], FLOAT32)  # the last one overflows everywhere
    values, masks, rests, jumps = interpret(graph, {"tin": numbers}, FLOAT32)
    eps = float(np.finfo(FLOAT32).eps)
    assert 4 * eps < values.error[0] < 16 * eps
    np.testing.assert_array_equal(values.lost, [False, False, False])
    np.testing.assert_array_equal(masks.error > 0, [True, True, False])
    np.testing.assert_array_equal(rests.lost, [True, True, False])
    np.testing.assert_array_equal(jumps.lost, [False, True, False])


# --- what it found --------------------------------------------------------------------------------


def test_numbers_keep_their_digits_in_float64(backend: Any) -> None:
    with backend.precision(FLOAT64):
        x = backend.array(np.array([0.0, np.nan, np.inf, -np.inf]))
        filled = xp.nan_to_num(x, nan=0.1, posinf=0.2, neginf=0.3)
        np.testing.assert_array_equal(backend.numpy(filled), [0.0, 0.1, 0.2, 0.3])
        low = backend.numpy(xp.threshold(x, 0.5, 0.1))
        np.testing.assert_array_equal(low, [0.1, np.nan, np.inf, 0.1])
        full = backend.numpy(xp.full_like(x, 0.1))
    np.testing.assert_array_equal(full, [0.1] * 4)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_number_beside_a_16_bit_tensor_is_rounded_to_its_dtype_first(
    backend: Any, dtype: Any
) -> None:
    x = np.array([1.0, 7.0, -100.0], dtype)
    step = np.asarray(-0.3, dtype).astype(np.float64)
    expected = np.remainder(x.astype(np.float64), step).astype(dtype)
    actual = backend.numpy(xp.remainder(backend.array(x), -0.3))
    np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


def test_one_element_is_put_back_from_behind(backend: Any) -> None:
    for dtype in DTYPES:
        with backend.precision(dtype):
            x = backend.array(np.array([3.0], dtype))
            put = backend.numpy(xp.setitem(x, x, ((None, None, -1),)))
        assert put.astype(np.float64) == [3.0]


def test_number_is_limited_by_a_number_and_a_tensor(backend: Any) -> None:
    high = np.array([-2.0, 0.5, 3.0], FLOAT32)
    actual = backend.numpy(xp.clip(1, 0.0, backend.array(high)))
    assert actual.dtype == FLOAT32
    np.testing.assert_array_equal(actual, [-2.0, 0.5, 1.0])


@pytest.mark.backends("jax")
def test_compiled_code_keeps_what_corrects_a_logarithm(backend: Any) -> None:
    import jax

    x = np.concatenate([-np.logspace(-18, -0.1, 50), [0.0], np.logspace(-18, 2, 50)])
    with backend.precision(FLOAT64):
        tensor = backend.array(x)
        for function, exact in ((xp.log1p, np.log1p), (xp.log_ndtr, special.log_ndtr)):
            compiled = backend.numpy(jax.jit(function)(tensor))
            np.testing.assert_allclose(compiled, exact(x), rtol=3e-15, atol=0)
        slope = backend.numpy(jax.vmap(jax.grad(xp.log1p))(tensor))
        bend = backend.numpy(jax.vmap(jax.grad(jax.grad(xp.log1p)))(tensor))
    np.testing.assert_allclose(slope, 1 / (1 + x), rtol=1e-15)
    np.testing.assert_allclose(bend, -1 / (1 + x) ** 2, rtol=1e-15)


def compiled(backend: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """As a whole, by XLA."""
    if backend.name == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


@pytest.mark.backends("jax", "tensorflow")
@pytest.mark.parametrize("exponent", [3, 5, -1, 0.5, "x"])
def test_compiled_code_keeps_the_nan_of_a_power_whose_logarithm_is_taken(
    backend: Any, exponent: Any
) -> None:
    def function(x: Any) -> Any:
        return xp.log2(xp.pow(x, x if exponent == "x" else exponent))

    x = np.array([-0.9, -2.5, 0.5, 3.0, np.nan], FLOAT32)
    with np.errstate(invalid="ignore"):
        expected = np.log2(np.power(x, x if exponent == "x" else exponent))
    actual = backend.numpy(compiled(backend, function)(backend.array(x)))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.backends("jax", "tensorflow")
def test_compiled_squareplus_does_not_overflow_near_the_end_of_the_range(backend: Any) -> None:
    x = np.array([3.2e38, 2.4e38, -2.4e38, np.inf, -np.inf, 0.0], FLOAT32)
    for b in (0.0, 4.0):
        actual = backend.numpy(
            compiled(backend, lambda x, b=b: xp.squareplus(x, b))(backend.array(x))
        )
        expected = [3.2e38, 2.4e38, 0.0, np.inf, 0.0, b**0.5 / 2]
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_becomes_the_largest_number_of_its_dtype(backend: Any, dtype: Any) -> None:
    with backend.precision(dtype):
        x = backend.array(np.array([np.inf, -np.inf, np.nan, 1.0], dtype))
        actual = backend.numpy(xp.nan_to_num(x))
        upper = backend.numpy(xp.nan_to_num(x, neginf=-2.0))
    largest = float(finfo(dtype).max)
    np.testing.assert_array_equal(actual.astype(np.float64), [largest, -largest, 0.0, 1.0])
    np.testing.assert_array_equal(upper.astype(np.float64), [largest, -2.0, 0.0, 1.0])


def test_sinc_of_an_infinity_is_nan_as_that_of_numpy(backend: Any) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0], FLOAT32)
    with np.errstate(invalid="ignore"):
        actual = backend.numpy(xp.sinc(backend.array(x)))
    np.testing.assert_array_equal(actual, [np.nan, np.nan, np.nan, 1.0])


@pytest.mark.parametrize("fill", [5.0, -1.5, 0.0])
def test_integers_and_masks_are_padded_with_a_float(backend: Any, fill: float) -> None:
    x = np.array([-0.5, 2.0], FLOAT32)
    whole = xp.pad(xp.cast(backend.array(x), "int32"), 1, fill)
    mask = xp.pad(backend.array(x) > 1, 1, fill)
    np.testing.assert_array_equal(backend.numpy(whole), [int(fill), 0, 2, int(fill)])
    np.testing.assert_array_equal(backend.numpy(mask), [bool(fill), False, True, bool(fill)])


def tensor_input(name: str) -> Node:
    return make_node(ops.INPUT, (), {"name": name}, INPUT)


def test_interpreter_leaves_out_what_the_order_of_an_einsum_decides() -> None:
    a, b = tensor_input("a"), tensor_input("b")
    inputs = {
        "a": np.array([[2.0, -1.0], [np.nan, 1.0], [2.0, 1.0]], FLOAT32),
        "b": np.array([[np.inf], [np.inf], [3.0]], FLOAT32),
    }
    for subscripts, lost in (("ab,ac->ac", [True, False, False]), ("ab,ac->abc", [False] * 3)):
        node = make_node(ops.EINSUM, (a, b), {"subscripts": subscripts}, INPUT)
        (result,) = interpret(Graph("sums", (a, b), (node,)), inputs, FLOAT32)
        np.testing.assert_array_equal(
            np.any(result.lost, axis=tuple(range(1, result.lost.ndim))), lost
        )


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_interpreter_leaves_out_what_overflows_on_the_way(dtype: Any) -> None:
    top, names = float(finfo(dtype).max), ("start", "end", "weight")
    rows = np.array([[-0.6, top, -0.6], [-0.8 * top, 0.8 * top, 0.5], [0.5 * top, 0, 0.25]], dtype)
    operands = tuple(map(tensor_input, names))
    graph = Graph("lerp", operands, (make_node(ops.LERP, operands, {}, INPUT),))
    (result,) = interpret(graph, dict(zip(names, rows.T, strict=True)), dtype)
    np.testing.assert_array_equal(result.lost, [True, True, False])


def test_interpreter_leaves_out_a_product_of_a_doubtful_zero_and_no_logarithm() -> None:
    a, b = tensor_input("a"), tensor_input("b")
    node = make_node(ops.XLOGY, (make_node(ops.EXP2, (a,), {}, INPUT), b), {}, INPUT)
    inputs = {
        "a": np.array([-145.0, -145.0, -145.0, 0.0, -145.0], FLOAT32),
        "b": np.array([-2.0, 0.0, 3.0, -2.0, np.nan], FLOAT32),
    }
    (result,) = interpret(Graph("jumps", (a, b), (node,)), inputs, FLOAT32)
    np.testing.assert_array_equal(result.lost, [True, True, False, False, False])


def test_interpreter_chooses_between_masks_by_a_doubtful_one() -> None:
    x = tensor_input("x")
    mask_type = Type("tensor", BOOL, INPUT.shape)
    power = make_node(ops.EXP, (x,), {}, INPUT)
    doubtful = make_node(ops.GT, (power, power), {}, mask_type)
    positive = make_node(ops.GT, (x, make_node(ops.NEG, (x,), {}, INPUT)), {}, mask_type)
    chosen = make_node(ops.WHERE, (doubtful, positive, positive), {}, mask_type)
    (result,) = interpret(
        Graph("masks", (x,), (chosen,)), {"x": np.array([3.0, -3.0], FLOAT32)}, FLOAT32
    )
    np.testing.assert_array_equal(result.value, [True, False])
    np.testing.assert_array_equal(result.error, [0.0, 0.0])


def test_interpreter_does_not_know_the_sign_of_a_zero_that_was_put_into_zeros() -> None:
    x = tensor_input("x")
    put = make_node(ops.SETITEM, (x, x), {"index": ((None, None, None),)}, INPUT)
    outputs = tuple(make_node(op, (put,), {}, INPUT) for op in (ops.RSQRT, ops.DIGAMMA))
    inputs = {"x": np.array([-0.0, 0.0, 2.0], FLOAT32)}
    for result in interpret(Graph("zeros", (x,), outputs), inputs, FLOAT32):
        np.testing.assert_array_equal(result.lost, [True, False, False])


def test_interpreter_takes_digamma_by_the_sign_of_zero() -> None:
    x = tensor_input("x")
    shrunk = make_node(ops.SOFT_SHRINK, (x,), {"lambd": 2.0}, INPUT)
    outputs = tuple(make_node(ops.DIGAMMA, (node,), {}, INPUT) for node in (x, shrunk))
    inputs = {"x": np.array([-0.0, 0.0], FLOAT32)}
    known_sign, unknown_sign = interpret(Graph("poles", (x,), outputs), inputs, FLOAT32)
    np.testing.assert_array_equal(known_sign.value, [np.inf, -np.inf])
    np.testing.assert_array_equal(known_sign.lost, [False, False])
    np.testing.assert_array_equal(unknown_sign.lost, [True, True])


def test_interpreter_does_not_know_what_a_compiler_makes_of_a_range_left_on_the_way() -> None:
    x, y, z = (tensor_input(name) for name in "xyz")
    power = make_node(ops.EXP, (x,), {}, INPUT)
    quotient = make_node(ops.DIV, (y, z), {}, INPUT)
    outputs = (
        power,
        make_node(ops.LOG, (power,), {}, INPUT),
        make_node(ops.DIV, (x, quotient), {}, INPUT),
        make_node(ops.DIV, (quotient, x), {}, INPUT),
    )
    graph = Graph("regrouped", (x, y, z), outputs)
    inputs = {
        "x": np.array([3.0, 100.0, 1e30, np.inf, -1e30], FLOAT32),
        "y": np.array([1.0, 1.0, 1e20, 1.0, 1.0], FLOAT32),
        "z": np.array([2.0, 2.0, 1e20, 2.0, 2.0], FLOAT32),
    }
    for whole, lost in (
        (False, [[0, 0, 0, 0, 0]] * 4),
        (True, [[0, 0, 0, 0, 0], [0, 1, 1, 0, 1], [0, 0, 1, 1, 0], [0, 0, 1, 1, 0]]),
    ):
        results = interpret(graph, inputs, FLOAT32, regroups=whole)
        np.testing.assert_array_equal([result.lost for result in results], lost)


@pytest.mark.backends("jax")
def test_compiler_that_is_declared_to_regroup_does(backend: Any) -> None:
    x = backend.array(np.array([100.0, -200.0], FLOAT32))
    actual = backend.numpy(compiled(backend, lambda x: xp.log(xp.exp(x)))(x))
    assert np.isfinite(actual).tolist() == [regroups(backend.name)] * 2
    assert backend.numpy(xp.log(xp.exp(x))).tolist() == [np.inf, -np.inf]
