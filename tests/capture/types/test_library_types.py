"""A captured function has the types that its library gives: of reductions, constants, integers,
tensors without axes, and of what is computed wider inside.
"""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.capture.values import oracle
from multigrad.errors import NotProvenWarning, TraceError

from ...harness.torch_class import torch_class

Tensor = Any


def captured(function: Any, dialect: str) -> Any:
    """Return a function as a graph, whose gradient nobody asks for."""
    return xg.function(
        function, lambda g, *given: [None] * len(given), native=False, dialect=dialect
    )


def assert_same(function: Any, dialect: str, *given: Any, rtol: float = 0.0) -> None:
    """Compare a function with its graph: numbers and dtype."""
    found, expected = captured(function, dialect)(*given), function(*given)
    assert found.dtype == expected.dtype
    if rtol:
        np.testing.assert_allclose(found, expected, rtol=rtol)
    else:  # integers far above what floats hold, too
        np.testing.assert_array_equal(found, expected)


def test_a_reduction_computes_in_the_dtype_that_it_names() -> None:
    large = np.full(3, 60000.0, np.float16)
    total = captured(lambda x: np.sum(x, dtype=np.float32), "numpy")
    assert total(large) == np.float32(180000.0)
    digits = captured(lambda x: np.cumsum(x, dtype=np.float64), "numpy")
    tenths = np.full(7, 0.1, np.float32)
    np.testing.assert_array_equal(digits(tenths), np.cumsum(tenths, dtype=np.float64))


def test_what_code_makes_from_numbers_has_the_librarys_dtype() -> None:
    x = np.array([0.5, 2.0], np.float32)
    assert captured(lambda x: np.where(x > 1, 1.0, 0.0), "numpy")(x).dtype == np.float64
    assert captured(lambda x: np.where(x > 1, 1, 0), "numpy")(x).dtype == np.int64
    assert captured(lambda x: x + np.zeros(2), "numpy")(x).dtype == np.float64


def test_in_a_rule_it_has_that_of_the_input() -> None:
    @xg.register("halved_inside_for_types", dialect="numpy", override=True)
    def halved(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * np.where(np.abs(tin) < 1, 0.5, 1.0)

    ones = np.ones(2, np.float32)
    assert xg.get("halved_inside_for_types")(None, ones, ones).dtype == np.float32


def test_integers_stay_integers_far_above_what_floats_hold() -> None:
    far = np.array([2**53 + 1, -7, 5])
    for function in (
        np.sign, np.square, np.floor, lambda x: np.fmod(x, 2), lambda x: x @ x, np.sort,
        lambda x: np.prod(x % 10), lambda x: np.outer(x % 10, x % 10), lambda x: x**3 - 1,
    ):  # fmt: skip
        assert_same(function, "numpy", far)


def test_a_dtype_that_graphs_lack_is_refused_with_the_line() -> None:
    with pytest.raises(TraceError, match=r"test_library_types\.py:\d+\).*it gives uint64"):
        captured(lambda x: np.sum(x), "numpy")(np.array([1, 2], np.uint8))


def test_one_graph_serves_single_and_double_precision() -> None:
    function = captured(lambda x: np.tanh(x) * 2.5 + np.sum(x), "numpy")
    for dtype in (np.float32, np.float64):
        assert function(np.ones(3, dtype)).dtype == dtype
    assert "T[" in xg.show(function)


@pytest.mark.needs("torch")
def test_a_tensor_without_axes_gives_way_to_one_with_axes(torch: Any) -> None:
    step = torch.tensor(0.25)  # as a learnable step is beside what autocast makes
    function = captured(lambda x, s: torch.round(x / s) * s, "torch")
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = torch.tensor([0.3, -0.7], dtype=dtype)
        result = function(x, step)
        assert result.dtype == dtype == (torch.round(x / step) * step).dtype
        torch.testing.assert_close(result, torch.round(x / step) * step, rtol=0, atol=0)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("constant", [2.0, [2.0]])
def test_a_rank_that_decides_beside_a_constant_is_looked_at(constant: Any, torch: Any) -> None:
    def doubled(x: Tensor) -> Tensor:
        return x * torch.tensor(constant, dtype=torch.float64)

    found = captured(doubled, "torch")
    for shape in ((3,), (2, 3), (), (5,)):
        x = torch.ones(shape)
        assert found(x).dtype == doubled(x).dtype


@pytest.mark.needs("torch")
def test_two_values_of_the_inputs_shape_ask_for_no_rank(torch: Any) -> None:
    found = captured(lambda x: x * x.to(torch.float64), "torch")
    for shape in ((), (3,), (2, 3)):
        assert found(torch.ones(shape)).dtype == torch.float64
    assert len(found.captures.variants) == 1


@pytest.mark.needs("torch")
def test_float_in_a_class_is_float32(torch: Any) -> None:
    @torch_class(lambda ctx, grad: grad * (ctx.saved_tensors[0].abs() < 1).float())
    def Spike(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).float()

    spike = xg.from_autograd_function(Spike)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.tensor([0.5, -2.0], dtype=dtype, requires_grad=True)
        result = spike(x)
        result.sum().backward()
        assert (result.dtype, x.grad.dtype) == (torch.float32, dtype)
    assert spike(np.array([0.5, -2.0])).dtype == np.float32


@pytest.mark.needs("torch")
def test_a_constant_in_the_inputs_dtype_keeps_all_digits(torch: Any) -> None:
    @torch_class(lambda ctx, grad: grad * torch.as_tensor(math.pi, dtype=grad.dtype))
    def TimesPi(ctx: Any, x: Tensor) -> Tensor:
        return x * torch.tensor(math.pi, dtype=x.dtype)

    function = xg.from_autograd_function(TimesPi)
    outputs, pull = xg.vjp(function, np.ones(1))
    assert outputs[0] == pull(np.ones(1))[0][0] == math.pi


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_what_torch_rounds_once_is_rounded_once(name: str, torch: Any, F: Any) -> None:
    x = (torch.arange(16).reshape(4, 4) / 7.0 - 1.0).to(getattr(torch, name)) * 300
    for function in (
        lambda x: F.softplus(x, beta=100),
        lambda x: torch.addcmul(x, x, x, value=0.001),
        lambda x: torch.addmm(x, x, x, alpha=0.001),
        lambda x: F.rms_norm(x, (4,)),
        lambda x: torch.round(x, decimals=2),
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: torch.softmax(x, -1, torch.float32),
    ):
        expected = function(x)
        result = captured(function, "torch")(x)
        assert result.dtype == expected.dtype
        eps = torch.finfo(expected.dtype).eps
        torch.testing.assert_close(result, expected, rtol=2 * eps, atol=0)


@pytest.mark.needs("torch")
def test_operands_are_repeated_before_lengths_are_taken(torch: Any, F: Any) -> None:
    x = torch.tensor([[1.5], [0.75]])
    y = torch.tensor([[2.0, 0.5, 1.0]])
    function = captured(lambda x, y: torch.cosine_similarity(x, y), "torch")
    torch.testing.assert_close(function(x, y), torch.cosine_similarity(x, y))
    loss = captured(lambda x, y: F.multilabel_soft_margin_loss(x, y), "torch")
    torch.testing.assert_close(loss(x, y), F.multilabel_soft_margin_loss(x, y))


@pytest.mark.needs("jax")
def test_weak_types_of_jax_give_way(jax: Any, jnp: Any) -> None:
    x = jnp.asarray([0.5, 2.0], jnp.float16)
    for function in (
        lambda x: x * jnp.where(x > 1, 1.0, 0.5),
        lambda x: x * jnp.asarray(2.5),
        lambda x: x * jnp.float32(2.5),
        lambda x: x + jnp.full((2,), 1.5),
        lambda x: jnp.dot(x, x, preferred_element_type=jnp.float32),
    ):
        assert_same(function, "jax", x, rtol=1e-3)
    with jax.enable_x64(True):
        wide = captured(lambda x: jnp.where(x > 1, 1, 0), "jax")(jnp.asarray([0.5, 2.0]))
        assert wide.dtype == jnp.int64


@pytest.mark.needs("jax")
def test_jax_is_asked_for_types_without_a_warning(jnp: Any) -> None:
    """Of float64 where 64 bits are off, which nobody wrote."""
    oracle._answers.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step = captured(lambda x: (x > 0).astype(x.dtype), "jax")
        assert step(jnp.asarray([-1.0, 2.0])).tolist() == [0.0, 1.0]
    assert not warned


@pytest.mark.needs("jax")
def test_a_capture_follows_jax_to_64_bits_and_back(jax: Any, jnp: Any) -> None:
    functions = [
        lambda x: x * 1.0,
        lambda x: jnp.broadcast_arrays(x, 2)[1],
        lambda x: jnp.zeros(3) + x.sum(),
    ]
    pairs = [(function, captured(function, "jax")) for function in functions]
    for is_wide in (False, True, False):
        with jax.enable_x64(is_wide):
            x = jnp.arange(3, dtype=jnp.int32)
            for function, graph in pairs:
                assert graph(x).dtype == function(x).dtype


@pytest.mark.needs("torch")
def test_a_capture_follows_the_default_dtype_of_torch(torch: Any) -> None:
    functions = [
        lambda x: x.long() / 2,
        lambda x: torch.zeros(3) * x.long(),
        lambda x: torch.tensor([1.0, 2.0, 3.0]) * x.long(),
        lambda x: torch.arange(0.0, 3.0) * x.long(),
        lambda x: torch.linspace(0, 1, 3) * x.long(),
        lambda x: torch.Tensor([1, 2, 3]) * x.long(),
        lambda x: torch.tensor(2.5) * x.long(),
    ]
    pairs = [(function, captured(function, "torch")) for function in functions]
    outside = torch.tensor([1.0, 2.0, 3.0])
    plain = captured(lambda x: (x > 1).float() * x * outside, "torch")
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float32)
            for function, graph in pairs:
                assert graph(x).dtype == function(x).dtype == dtype
            assert plain(x).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert not {"torch"} & set(
        map(str, plain.captures.facts)
    )  # calls that cannot differ look nothing up


@pytest.mark.needs("torch")
def test_integers_of_torch_take_the_common_dtype_before_they_are_multiplied(torch: Any) -> None:
    x, y = torch.tensor([2**24 + 1, 7], dtype=torch.int32), torch.tensor([100, 120]).char()
    z = torch.tensor([3, 5], dtype=torch.int8)
    for function in (
        lambda x, y, z: torch.addcmul(x, y, z),
        lambda x, y, z: x.addr(y, z),
        lambda x, y, z: x.half().addcmul(y, z),
        lambda x, y, z: y.new_tensor(1.5) + y,
        lambda x, y, z: torch.ldexp(x * 1e-8, y),
    ):
        assert_same(function, "torch", x, y, z)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("divisor", [2, -2, 3, -7])
def test_a_quotient_of_integers_is_right_of_the_least_one(divisor: int, torch: Any) -> None:
    least = torch.tensor([-(2**31), -(2**31) + 1, 7, -7, -1, 0, 2**31 - 1], dtype=torch.int32)
    for function in (
        lambda x: torch.div(x, divisor, rounding_mode="trunc"),
        lambda x: torch.div(x, torch.full_like(x, divisor), rounding_mode="trunc"),
    ):
        assert_same(function, "torch", least)


@pytest.mark.needs("torch")
def test_a_mask_beside_a_number_that_is_given_stays_one(torch: Any) -> None:
    filled = captured(lambda x, c: x.masked_fill(x < 1.0, 1 / (2 * c)), "torch")
    x = torch.tensor([0.5, 2.0])
    np.testing.assert_array_equal(filled(x, 4.0), [0.125, 2.0])


@pytest.mark.needs("jax")
def test_attention_of_jax_accumulates_in_float32(jax: Any, jnp: Any) -> None:
    x = jnp.full((1, 2, 1, 4), 60.0, jnp.float16)
    attention = captured(lambda x: jax.nn.dot_product_attention(x, x, x), "jax")
    np.testing.assert_allclose(attention(x), jax.nn.dot_product_attention(x, x, x), rtol=1e-3)


@pytest.mark.needs("tensorflow")
def test_cross_entropy_of_tensorflow_in_16_bits_is_computed_in_float32(tf: Any) -> None:
    logits = tf.constant([300.5, 2000.0, 0.25], tf.float16)
    labels = tf.constant([1e9, 1e9, 0.0])  # infinite in float16
    loss = captured(tf.nn.softmax_cross_entropy_with_logits, "tensorflow")(labels, logits)
    assert loss.dtype == tf.float16
    assert np.isposinf(loss)


@pytest.mark.needs("tensorflow")
def test_the_dtype_of_a_count_is_not_that_of_what_is_counted(tf: Any) -> None:
    x = tf.constant([0.0, 0.5, -0.25])
    count = captured(lambda x: tf.math.count_nonzero(x, dtype=tf.int32), "tensorflow")(x)
    assert (count.numpy(), count.dtype) == (2, tf.int32)


@pytest.mark.needs("tensorflow")
def test_a_constant_of_tensorflow_keeps_all_digits(tf: Any) -> None:
    x = tf.constant([1.0], tf.float64)
    for function in (
        lambda x: x * tf.sqrt(tf.constant(2.0, x.dtype)),
        lambda x: x * tf.exp(tf.constant(1.0, x.dtype)),
        lambda x: x * tf.constant(math.pi, x.dtype),
    ):
        assert_same(function, "tensorflow", x, rtol=4e-16)


def test_a_call_that_no_library_can_say_the_type_of_is_named(monkeypatch: Any) -> None:
    from multigrad.engine.capture.values import library_types

    monkeypatch.setattr(oracle, "ATTEMPTS", ())
    monkeypatch.setattr(library_types, "MOST_ELEMENTS", 0)
    monkeypatch.setattr(oracle, "_answers", {})
    function = captured(lambda x: np.isnan(x), "numpy")
    monkeypatch.setenv("MULTIGRAD_PROVE", "all")
    with pytest.warns(NotProvenWarning, match="no library says what dtype these give: .*isnan"):
        function(np.ones(2, np.float32))
    assert "types not confirmed: numpy's isnan" in xg.show(function)
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured(lambda x: np.isnan(x), "numpy")(np.ones(2, np.float32))


NUMBERS_OF_TENSORS = {
    "added": lambda x: x + x.max().item(),
    "with a number": lambda x: x * ((2 * x.max().item() + 1) // 3 % 1000),
    "to a power": lambda x: x - (x.min().item() - 2) ** 3,
    "divided": lambda x: x / (x.max().item() / 7),
    "inverse": lambda x: x * (1 / x.max().item()),
    "a root": lambda x: x * math.sqrt(x.max().item()),
    "rounded": lambda x: x + round(x.max().item()) - math.floor(x.min().item() / 2),
    "rounded to a float": lambda x: x * round(x.max().item() / 7, 0) + round(x.max().item(), 0),
    "the larger": lambda x: x + max(x.max().item(), 5) - min(x.max().item(), x.min().item()),
    "compared": lambda x: (x == x.max().item()) * (x.max().item() > 2**24),
}


@pytest.mark.parametrize(
    "library", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))]
)
@pytest.mark.parametrize("name", NUMBERS_OF_TENSORS)
def test_the_number_of_a_tensor_of_integers_is_an_integer(name: str, library: str) -> None:
    for dtype in (np.int64, np.int32):
        array, function = np.array([2**24 + 1, 3], dtype), NUMBERS_OF_TENSORS[name]
        x: Any = array if library == "numpy" else import_module("torch").from_numpy(array)
        assert_same(function, library, x, rtol=1e-15)


@pytest.mark.parametrize(
    ("library", "dtype"),
    [
        ("numpy", "int64"),
        pytest.param("torch", "int64", marks=pytest.mark.needs("torch")),
        pytest.param("tensorflow", "int32", marks=pytest.mark.needs("tensorflow")),
    ],
)
def test_a_length_that_is_returned_is_an_integer(library: str, dtype: str) -> None:
    def with_length(x: Tensor) -> Any:
        if library == "tensorflow":
            import tensorflow as tf

            return x * 2.0, tf.size(x) * 3
        return x * 2.0, x.shape[0] * 3

    _, length = captured(with_length, library)(np.ones(4, np.float32))
    assert (length, length.dtype) == (12, dtype)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "float32"])
def test_labels_of_a_loss_are_subtracted_in_their_own_dtype(dtype: str, torch: Any) -> None:
    def loss(x: Tensor) -> Tensor:
        labels = torch.tensor([3, 1, 2, 5], dtype=getattr(torch, dtype))
        return torch.nn.functional.multilabel_soft_margin_loss(x, labels)

    x = torch.tensor([1.5, -0.75, 2.25, 0.5])
    assert torch.allclose(captured(loss, "torch")(x), loss(x))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_draws_have_the_dtype_that_is_asked_for(dtype: str, torch: Any) -> None:
    asked, x = getattr(torch, dtype), torch.ones(4)
    for noisy in (
        lambda x: x * torch.rand_like(x, dtype=asked),
        lambda x: x * torch.randn_like(x, dtype=asked),
        lambda x: x * torch.rand(4, dtype=asked),
        lambda x: x * torch.randn(4, dtype=asked),
    ):
        found = captured(noisy, "torch").keyed(0)(x)
        assert found.dtype == noisy(x).dtype and (found != 0).any()


@pytest.mark.needs("torch")
def test_what_a_library_answers_does_not_depend_on_the_warnings_that_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    torch: Any = import_module("torch")
    x, thirds = torch.tensor([1.0, 2.0]), np.full((2, 1), 1 / 3)

    def meets_an_array(x: Any) -> Any:
        return torch.add(x, x) + thirds  # NumPy warns of the protocol by which torch takes it

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strict = xg.function(meets_an_array, native=False, dialect="torch")(x)
        warnings.simplefilter("ignore")
        torch.testing.assert_close(strict, meets_an_array(x))
        lenient = xg.function(meets_an_array, native=False, dialect="torch")(x)
        torch.testing.assert_close(lenient, strict)


@pytest.mark.needs("torch")
def test_code_under_autocast_changes_no_capture_outside_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    torch: Any = import_module("torch")
    linear = torch.nn.functional.linear
    x, weight = torch.full((2, 3), 1 / 3), torch.full((4, 3), 0.7)

    def narrow(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(x, w)

    oracle._answers.clear()
    assert xg.function(narrow)(x, weight).dtype == torch.bfloat16  # it runs as it is
    function = xg.function(lambda x, w: linear(x, w), native=False)
    torch.testing.assert_close(function(x, weight), linear(x, weight), rtol=0, atol=1e-6)


@pytest.mark.needs("torch")
def test_an_array_of_numpys_that_torch_code_makes_is_a_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")  # torch takes no array beside a gradient
    torch: Any = import_module("torch")
    function = xg.function(lambda x: torch.exp(x) * np.full(2, 0.5), native=False)
    assert function(torch.zeros(2)).tolist() == [0.5, 0.5]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_identity_that_a_factor_needs_has_the_dtype_of_the_matrix(dtype: str) -> None:
    torch: Any = import_module("torch")
    matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=getattr(torch, dtype))
    for function in (
        lambda a: torch.linalg.lu(a)[1] @ torch.linalg.lu(a)[2],
        lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)),
    ):
        got = xg.function(function, native=False)(matrix)
        assert got.dtype == matrix.dtype
        torch.testing.assert_close(got, function(matrix))
