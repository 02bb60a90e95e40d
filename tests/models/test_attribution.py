"""Rules of relevance over each kind of layer: what they give on every framework, against the
formulas of the papers written out over a matrix, what they conserve, and their edges.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.models import attribution as lrp
from multigrad_conformance.oracles import Draws, fold_in
from multigrad_conformance.under_test import as_tensors, pull

RNG = np.random.default_rng(14)
E = 1e-6


def array(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


# --- the oracle: one example, a layer as a matrix (inputs, outputs), contributions one by one -----


def away(z: Any, e: float) -> Any:
    return np.where(z < 0, z - e, z + e)


def shared(z: Any, bias: Any, relevance: Any, e: float = E) -> Any:
    """Relevance of inputs: z[i, j] / sum_i z[i, j] of what each output has."""
    return (z / away(z.sum(0) + bias, e) * relevance).sum(1)


def by_sign(z: Any, b: Any, r: Any, alpha: float, beta: float, e: float = E) -> Any:
    up = shared(np.maximum(z, 0), np.maximum(b, 0), alpha * r, e)
    return up - shared(np.minimum(z, 0), np.minimum(b, 0), beta * r, e)


def stronger(z: Any, b: Any, r: Any, gamma: float, e: float = E) -> Any:
    out = z.sum(0) + b
    up = shared(z + gamma * np.maximum(z, 0), b + gamma * np.maximum(b, 0), r * (out > 0), e)
    down = shared(z + gamma * np.minimum(z, 0), b + gamma * np.minimum(b, 0), r * (out < 0), e)
    return up + down


def boxed(x: Any, w: Any, r: Any, low: Any, high: Any) -> Any:
    w_up, w_down = np.maximum(w, 0), np.minimum(w, 0)
    return shared(x[:, None] * w - low * w_up - high * w_down, 0, r)


LOW = np.linspace(-4, -3, 3).astype(np.float32)  # of the first axis after the batch
# rule, and the same of (x, matrix, which weights are there, bias, relevance)
RULES: dict[str, tuple[Any, Any]] = {
    "epsilon": (lrp.epsilon(), lambda x, w, on, b, r: shared(x[:, None] * w, b, r)),
    "epsilon of a quarter": (
        lrp.epsilon(0.25),
        lambda x, w, on, b, r: shared(x[:, None] * w, b, r, 0.25),
    ),
    "zplus": (lrp.zplus(), lambda x, w, on, b, r: by_sign(x[:, None] * w, b, r, 1, 0)),
    "gamma": (lrp.gamma(), lambda x, w, on, b, r: stronger(x[:, None] * w, b, r, 0.25)),
    "gamma without the bias": (
        lrp.gamma(zero_params="bias"),
        lambda x, w, on, b, r: stronger(x[:, None] * w, 0, r, 0.25),
    ),
    "gamma of 2": (
        lrp.gamma(2.0, 1e-3),
        lambda x, w, on, b, r: stronger(x[:, None] * w, b, r, 2.0, 1e-3),
    ),
    "alpha 2, beta 1": (
        lrp.alpha_beta(),
        lambda x, w, on, b, r: by_sign(x[:, None] * w, b, r, 2, 1),
    ),
    "alpha 1, beta 0": (
        lrp.alpha_beta(1, 0),
        lambda x, w, on, b, r: by_sign(x[:, None] * w, b, r, 1, 0),
    ),
    "wsquare": (lrp.wsquare(), lambda x, w, on, b, r: shared(w**2, b**2, r)),
    "flat": (lrp.flat(), lambda x, w, on, b, r: shared(1.0 * on, 0, r)),
    "zbox": (lrp.zbox(-4.0, 5.0), lambda x, w, on, b, r: boxed(x, w, r, -4.0, 5.0)),
    "epsilon without the bias": (
        lrp.epsilon(zero_params="bias"),
        lambda x, w, on, b, r: shared(x[:, None] * w, 0, r),
    ),
    "norm": (lrp.norm(), lambda x, w, on, b, r: shared(x[:, None] * w, b, r)),
}
# input, weight, strides, padding, dilations, groups
CONVOLUTIONS: dict[str, tuple[Any, ...]] = {
    "one axis": ((2, 3, 7), (4, 3, 3), (2,), ((1, 1),), (1,), 1),
    "padded unevenly": ((2, 3, 5, 4), (2, 3, 2, 3), (1, 1), ((0, 1), (2, 0)), (1, 1), 1),
    "strides, dilations": ((2, 3, 7, 6), (4, 3, 3, 2), (2, 1), ((1, 1), (0, 0)), (1, 2), 1),
    "groups": ((2, 6, 4, 4), (4, 3, 2, 2), (1, 2), ((0, 0), (1, 1)), (1, 1), 2),
    "three axes": ((1, 3, 3, 4, 3), (2, 3, 2, 2, 2), (1, 2, 1), ((0, 0),) * 3, (1, 1, 1), 1),
}


def matrix_of(case: tuple[Any, ...], weight: Any, out: Any) -> tuple[Any, Any]:
    """A convolution of one example as a matrix, and where it has weights."""
    shape, _, strides, padding, dilations, groups = case
    channels, *lengths = shape[1:]
    matrix = np.zeros((channels, *lengths, *out))
    on = np.zeros(matrix.shape, bool)
    per_group, out_per_group = channels // groups, out[0] // groups
    for place in itertools.product(*map(range, out)):
        o, *at = place
        for inner in itertools.product(*map(range, weight.shape[1:])):
            c, *k = inner
            steps = zip(at, strides, k, dilations, padding, strict=True)
            where = [i * s + j * d - p[0] for i, s, j, d, p in steps]
            if all(0 <= i < n for i, n in zip(where, lengths, strict=True)):
                index = (o // out_per_group * per_group + c, *where, *place)
                matrix[index], on[index] = weight[(o, *inner)], True
    flat = (channels * int(np.prod(lengths)), -1)
    return matrix.reshape(flat), on.reshape(flat)


def attributes_of(case: tuple[Any, ...]) -> dict[str, Any]:
    _, _, strides, padding, dilations, groups = case
    return {"strides": strides, "padding": padding, "dilations": dilations, "groups": groups}


def relevance(backend: Any, layer: Any, tensors: Any, given: Any) -> tuple[Any, Any]:
    """What a layer gives and what it sends back to x."""
    out, back = xg.vjp(layer, *as_tensors(backend, tensors))
    returned = back(backend.array(given(backend.numpy(out))))
    return backend.numpy(out), backend.numpy(returned[0])


def some(out: Any) -> Any:
    return np.cos(np.arange(out.size)).reshape(out.shape).astype(out.dtype)


def compare(result: Any, expected: Any) -> None:
    """A bound over all elements: what was divided by something small is large in both."""
    scale = np.abs(expected).max()
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-4 * scale)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_over_a_linear_layer_is_the_papers(backend: Any, name: str) -> None:
    rule, oracle = RULES[name]
    x, weight, bias = array(4, 6), array(6, 5), array(5)
    out, result = relevance(backend, rule.over("linear"), (x, weight, bias), some)
    np.testing.assert_allclose(out, x @ weight + bias, rtol=1e-5, atol=1e-5)
    rows = [
        oracle(row.astype(float), weight.astype(float), weight < np.inf, bias, r)
        for row, r in zip(x, some(out), strict=True)
    ]
    compare(result, np.stack(rows))


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("name", ["gamma", "zbox"])
def test_a_rule_over_a_convolution_is_that_over_its_matrix(
    backend: Any, name: str, convolution: str
) -> None:
    rule, oracle = RULES[name]
    case = CONVOLUTIONS[convolution]
    x, weight, bias = array(*case[0]), array(*case[1]), array(case[1][0])
    layer = rule.over("convolution", **attributes_of(case))
    out, result = relevance(backend, layer, (x, weight, bias), some)
    matrix, on = matrix_of(case, weight, out.shape[1:])
    biases = np.repeat(bias, out[0, 0].size)
    flat = x.reshape(len(x), -1).astype(float)
    np.testing.assert_allclose(
        out.reshape(len(x), -1), flat @ matrix + biases, rtol=1e-4, atol=1e-5
    )
    rows = [
        oracle(row, matrix, on, biases, r.ravel()) for row, r in zip(flat, some(out), strict=True)
    ]
    compare(result, np.stack(rows).reshape(x.shape))


def test_a_transposed_convolution_has_the_matrix_transposed(backend: Any) -> None:
    case = ((1, 2, 6, 7), (4, 2, 3, 2), (2, 1), ((1, 1), (0, 1)), (1, 2), 1)
    weight, bias = array(*case[1]), array(2)
    x = array(1, 4, 3, 6)  # (6 + 2 - 3) // 2 + 1 and 7 + 1 - 2 windows
    matrix = matrix_of(case, weight, x.shape[1:])[0].T
    out = (x.reshape(1, -1) @ matrix + np.repeat(bias, 42)).reshape(case[0]).astype(np.float32)
    layer = lrp.alpha_beta().over("convolution_transpose", **attributes_of(case))
    same, result = relevance(backend, layer, (x, weight, bias, out), some)
    np.testing.assert_array_equal(same, out)
    z = x.reshape(-1, 1).astype(float) * matrix
    compare(result.ravel(), by_sign(z, np.repeat(bias, 42), some(out).ravel(), 2, 1))
    with pytest.raises(TypeError, match="needs what it computed"):
        xg.vjp(layer, *map(backend.array, (x, weight, bias)))


POOLS: dict[str, tuple[str, Any, Any]] = {
    "windows side by side": (
        "average_pooling",
        {"sizes": (2, 2), "strides": (2, 2), "padding": ((0, 0),) * 2, "counts_padding": True},
        [[[0, 1], [2, 3], [4, 5]], [[0, 1], [2, 3]]],
    ),
    "windows that overlap": (
        "average_pooling",
        {"sizes": (3, 2), "strides": (2, 1), "padding": ((1, 1), (0, 0)), "counts_padding": False},
        [[[0, 1], [1, 2, 3], [3, 4, 5]], [[0, 1], [1, 2], [2, 3], [3, 4]]],
    ),
    "as many as asked for": (
        "adaptive_average_pooling",
        {"counts": (4, 2)},
        [[[0, 1], [1, 2], [3, 4], [4, 5]], [[0, 1, 2], [2, 3, 4]]],
    ),
    "all": ("adaptive_average_pooling", {"counts": (1, 1)}, [[range(6)], [range(5)]]),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_shares_out_by_what_each_element_brought(backend: Any, name: str) -> None:
    kind, attributes, windows = POOLS[name]
    x = array(2, 3, 6, 5)
    out, result = relevance(backend, lrp.norm().over(kind, **attributes), (x,), some)
    rows, columns = windows
    expected, means = np.zeros(x.shape), np.zeros((2, 3, len(rows), len(columns)))
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        cut = np.ix_(range(2), range(3), list(row), list(column))
        z = x[cut].astype(float) / (len(row) * len(column))
        means[:, :, i, j] = z.sum((2, 3))
        ratio = some(out)[:, :, i, j] / away(means[:, :, i, j], E)
        expected[cut] += z * ratio[..., None, None]
    np.testing.assert_allclose(out, means, rtol=1e-5, atol=1e-6)
    compare(result, expected)


def test_an_addition_shares_out_by_what_each_summand_brought(backend: Any) -> None:
    a, b = array(2, 3, 4), array(3, 1)
    layer = lrp.norm().over("addition")
    given = some(a + b)
    _, (of_a, of_b, *_) = pull(backend, layer, (a, b), given)
    ratio = given / away((a + b).astype(float), E)
    compare(of_a, a * ratio)
    compare(of_b, (b * ratio).sum((0, 2))[:, None])


CONSERVE = ["epsilon", "zplus", "gamma", "alpha 2, beta 1", "wsquare", "flat", "zbox"]


@pytest.mark.parametrize("name", CONSERVE)
def test_without_bias_what_comes_back_is_what_arrived(backend: Any, name: str) -> None:
    x, weight = np.abs(array(3, 8)) + 0.1, np.abs(array(8, 4)) + 0.1
    weight[::3] *= -0.2  # both signs, no sum near zero
    out, result = relevance(backend, RULES[name][0].over("linear"), (x, weight, None), some)
    np.testing.assert_allclose(result.sum(1), some(out).sum(1), rtol=1e-4, atol=1e-4)


def test_of_contributions_of_one_sign_two_rules_conserve_nothing() -> None:
    x, weight = np.ones((1, 3)), np.full((3, 1), -1.0)
    for rule, kept in ((lrp.alpha_beta(), -1.0), (lrp.zplus(), 0.0), (lrp.flat(), 1.0)):
        _, pull = xg.vjp(rule.over("linear"), x, weight, None)
        assert np.isclose(pull(np.ones((1, 1)))[0].sum(), kept, atol=1e-5)


def test_a_weight_is_taken_in_the_layout_that_is_told(backend: Any) -> None:
    rule, x, weight, bias = lrp.epsilon(0.1), array(2, 3), array(3, 3), array(3)
    tensors = [*map(backend.array, (x, weight, bias))]
    one = rule.over("linear", layout="in_out")(*tensors)
    np.testing.assert_allclose(backend.numpy(one), x @ weight + bias, rtol=1e-5, atol=1e-5)
    of_rows = rule.over("linear", layout="out_in")
    out, result = relevance(backend, of_rows, (x, weight[:2], bias[:2]), some)
    np.testing.assert_allclose(out, x @ weight[:2].T + bias[:2], rtol=1e-5, atol=1e-5)
    turned = weight[:2].T.copy(), bias[:2]
    compare(result, relevance(backend, rule.over("linear"), (x, *turned), some)[1])
    for given in (weight, weight[:2]):
        with pytest.raises(TypeError, match=r"layout='out_in'.* as torch\.nn\.Linear has it"):
            rule.over("linear")(tensors[0], *map(backend.array, (given, bias[: len(given)])))
    with pytest.raises(ValueError, match=r"'in_out', 'out_in'.* not 'io'"):
        rule.over("linear", layout="io")


def test_what_the_layer_computed_itself_is_returned_and_keeps_its_gradient(backend: Any) -> None:
    x, weight, bias = array(2, 3), array(3, 2), array(2)
    out = (x @ weight + bias + 1).astype(np.float32)  # no value of the formula
    layer = lrp.epsilon().over("linear")
    given = some(out)
    result, (of_x, _, _, of_out, *_) = pull(backend, layer, (x, weight, bias, out), given)
    np.testing.assert_array_equal(result, out)
    np.testing.assert_array_equal(of_out, given)
    compare(of_x, x * ((given / away(out, E)) @ weight.T))


def test_weights_get_nothing_of_the_relevance() -> None:
    x, weight, bias = array(2, 3), array(3, 2), array(2)
    out, pull = xg.vjp(lrp.zplus().over("linear"), x, weight, bias)
    _, of_weight, of_bias, *_ = pull(np.ones_like(out))
    assert not np.any(of_weight) and not np.any(of_bias)


def test_a_sum_of_exactly_zero_counts_as_a_little_more(backend: Any) -> None:
    x, weight = np.ones((1, 2), np.float32), np.array([[1.0], [-1.0]], np.float32)
    ones = np.ones_like
    _, result = relevance(backend, lrp.epsilon(0.5).over("linear"), (x, weight, None), ones)
    np.testing.assert_array_equal(result, [[2.0, -2.0]])
    _, result = relevance(backend, lrp.gamma(1.0, 0.5).over("linear"), (x, weight, None), ones)
    np.testing.assert_array_equal(result, [[0.0, 0.0]])
    nothing = np.zeros((1, 2), np.float32)
    for name in CONSERVE[:4]:
        _, result = relevance(backend, RULES[name][0].over("linear"), (nothing, weight, None), ones)
        np.testing.assert_array_equal(result, [[0.0, 0.0]])


@pytest.mark.parametrize("name", CONSERVE)
def test_half_precision_rounds_once(backend: Any, name: str) -> None:
    half = np.dtype(np.float16)
    x, weight, bias = (array(*shape).astype(half) for shape in ((3, 40), (40, 5), (5,)))
    rule, oracle = RULES[name]
    with backend.precision(half):
        out, result = relevance(backend, rule.over("linear"), (x, weight, bias), some)
    assert result.dtype == half
    # What the sum is in 16 bits is what the layer gave.
    given = some(out).astype(float)
    wide = [t.astype(float) for t in (x, weight, bias)]
    rows = [
        oracle(row, wide[1], weight < np.inf, wide[2], r)
        for row, r in zip(wide[0], given, strict=True)
    ]
    expected = np.stack(rows)
    near = np.abs(wide[0] @ wide[1] + wide[2]).min()
    eps = float(np.finfo(half).eps)
    bound = eps * np.abs(expected).max() * (4 + 10 / near)
    np.testing.assert_allclose(result.astype(float), expected, rtol=0, atol=bound)


def test_bounds_of_the_box_may_be_tensors(backend: Any) -> None:
    x, weight = array(2, 3), array(3, 4)
    low, high = np.float32([[-3, -4, -5]]), np.float32([[3, 4, 5]])
    rule = lrp.zbox(backend.array(low), backend.array(high))
    out, result = relevance(backend, rule.over("linear"), (x, weight, None), some)
    rows = [
        boxed(row.astype(float), weight, r, low.T, high.T)
        for row, r in zip(x, some(out), strict=True)
    ]
    compare(result, np.stack(rows))


def test_other_numbers_need_no_other_capture() -> None:
    first, second = lrp.epsilon(0.1).over("linear"), lrp.epsilon(0.2).over("linear")
    x, weight = array(2, 3), array(3, 2)
    first(x, weight)
    captured = len(first.captures.variants)
    second(x, weight)
    assert len(second.captures.variants) == len(first.captures.variants) == captured
    assert lrp.epsilon(0.1) == lrp.epsilon(0.1) != lrp.epsilon(0.2)
    rule = lrp.epsilon()
    assert rule.over("linear") is rule.over("linear")


def test_what_has_no_meaning_is_refused_with_what_has() -> None:
    with pytest.raises(TypeError, match=r"zplus.*addition.*linear, convolution"):
        lrp.zplus().over("addition")
    with pytest.raises(
        TypeError, match=r"strides, padding, dilations, groups;.*padding=\(\(0, 0\),\)"
    ):
        lrp.zplus().over("convolution", stride=1)
    with pytest.raises(TypeError, match="did you mean 'convolution'"):
        lrp.zplus().over("convolutions")
    with pytest.raises(ValueError, match="alpha - beta is 1"):
        lrp.alpha_beta(2, 2)
    with pytest.raises(ValueError, match="param 'beta' is >= 0"):
        lrp.alpha_beta(0, -1)
    with pytest.raises(ValueError, match="'weight' and 'bias'"):
        lrp.epsilon(zero_params="biases")


def test_a_merged_normalization_is_the_two_layers_in_one(backend: Any) -> None:
    x, weight, bias, mean, scale, shift = (
        array(*shape) for shape in ((5, 3), (3, 4), (4,), (4,), (4,), (4,))
    )
    variance = np.square(array(4))
    expected = ((x @ weight + bias) - mean) / np.sqrt(variance + 1e-3) * scale + shift
    tensors = map(backend.array, (weight, bias, mean, variance, scale, shift))
    merged, moved = map(backend.numpy, lrp.merge_batch_norm(*tensors, epsilon=1e-3, axis=-1))
    np.testing.assert_allclose(x @ merged + moved, expected, rtol=1e-4, atol=1e-4)
    kernels = array(4, 3, 2, 2)
    merged, moved = lrp.merge_batch_norm(kernels, None, mean, variance)
    factor = 1 / np.sqrt(variance + 1e-5)
    np.testing.assert_allclose(merged, kernels * factor[:, None, None, None], rtol=1e-5)
    np.testing.assert_allclose(moved, -mean * factor, rtol=1e-5)


def test_other_rules_of_equal_numbers_are_equal_after_a_copy() -> None:
    for rule in (lrp.gamma(0.5), lrp.zbox(-1, 1, zero_params="bias"), lrp.norm()):
        assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule


JIT: dict[str, dict[str, Any]] = {"torch": {"backend": "aot_eager", "fullgraph": True}}


def test_compiled_code_computes_the_same_relevance(backend: Any) -> None:
    if backend.name == "numpy":
        pytest.skip("NumPy compiles nothing")
    x, weight, bias = array(2, 3), array(3, 4), array(4)
    layer, tensors = lrp.alpha_beta().over("linear"), [*map(backend.array, (weight, bias))]
    out, pull = xg.vjp(layer, x, weight, bias)
    compiled = xg.jit(lambda x: layer(x, *tensors), backend.name, **JIT.get(backend.name, {}))
    result = backend.vjp(compiled, x, some(out))
    for got, expected in zip(result, (out, pull(some(out))[0]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# --- means of gradients ---------------------------------------------------------------------------


def test_smoothing_draws_the_same_noise_everywhere_and_averages(backend: Any) -> None:
    x = backend.array(array(2, 3))
    seen: list[Any] = []

    def gradient(point: Any) -> Any:
        seen.append(backend.numpy(point) - backend.numpy(x))
        return point * point

    result = backend.numpy(lrp.smooth(gradient, x, sigma=0.5, n=4, key=7))
    expected = np.mean([np.square(backend.numpy(x) + noise) for noise in seen], 0)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    for i, noise in enumerate(seen):
        half = 0.5 * Draws(fold_in((0, 7), i), np.zeros((2, 3), np.float32)).normal().value
        np.testing.assert_allclose(noise, half, rtol=1e-3, atol=1e-5)
    again = backend.numpy(lrp.smooth(lambda point: point * point, x, sigma=0.5, n=4, key=7))
    np.testing.assert_array_equal(again, result)


def test_integrated_gradients_add_up_to_what_the_output_gained(backend: Any) -> None:
    x, start = array(2, 3), array(3)
    result = lrp.integrated(lambda p: 3 * p * p, backend.array(x), backend.array(start), n=50)
    np.testing.assert_allclose(backend.numpy(result), x**3 - start**3, rtol=2e-3, atol=2e-3)
    with pytest.raises(ValueError, match="1 or more"):
        lrp.integrated(lambda p: p, backend.array(x), n=0)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("mean", [lrp.smooth, lrp.integrated])
def test_a_mean_asks_torch_for_the_gradient_and_gives_numbers(mean: Any) -> None:
    import torch

    def gradient(point: Any, **options: Any) -> Any:
        return torch.autograd.grad((point**3).sum(), point, **options)[0]

    x = torch.tensor([1.0, 2.0])
    for given in (x, x.clone().requires_grad_()):
        assert not mean(gradient, given, n=2).requires_grad
    assert not x.requires_grad
    slope = mean(partial(gradient, create_graph=True), given, n=2).sum()
    assert torch.autograd.grad(slope, given)[0].isfinite().all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lrp.epsilon(float("nan")), "'epsilon': param 'epsilon' is >= 0 and finite"),
        (lambda: lrp.epsilon(-1.0), "'epsilon': param 'epsilon' is >= 0 and finite, got -1.0"),
        (lambda: lrp.epsilon(np.float32(-1.0)), "param 'epsilon'"),
        (lambda: lrp.zplus(stabilizer=-1e-6), "'zplus': param 'stabilizer'"),
        (lambda: lrp.gamma(-1), "'gamma': param 'gamma' is >= 0"),
        (lambda: lrp.alpha_beta(float("nan"), 1.0), "alpha - beta is 1"),
        (lambda: lrp.zbox(1, -1), "'zbox': param 'low' is <= high everywhere, got 1.0 and -1.0"),
        (lambda: lrp.zbox(np.zeros(2), np.array([1.0, -1.0])), "param 'low' is <= high"),
        (lambda: lrp.zbox(float("nan"), 1.0), "param 'low' holds NaN"),
        (
            lambda: lrp.zbox(np.zeros((1, 9, 8)), np.ones((1, 8, 8))),
            r"param 'low'.*shapes \(1, 9, 8\) and",
        ),
        (lambda: lrp.gamma("0.25"), "param 'gamma' is a number or a tensor, got '0.25'"),
        (lambda: xg.composites.epsilon_plus(epsilon="x"), "param 'epsilon' is a number"),
        (lambda: xg.composites.epsilon_gamma_box(-3.0, 3.0, gamma=-1.0), "param 'gamma'"),
    ],
)
def test_a_number_with_which_a_map_means_nothing_is_refused_when_it_is_given(
    make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(xg.RuleError, match=words):
        make()


def test_numbers_at_the_ends_of_their_ranges_are_taken() -> None:
    assert lrp.epsilon(0.0).numbers == {"epsilon": 0.0}
    assert lrp.zbox(-np.inf, np.inf).name == "zbox"
    assert lrp.gamma(0.0) != lrp.gamma()


def test_the_numbers_of_a_zbox_are_looked_at_in_tensors_too(backend: Any) -> None:
    numbers = array(3)
    low, high = backend.array(numbers), backend.array(numbers - 1.0)
    with pytest.raises(xg.RuleError, match="param 'low' is <= high everywhere"):
        lrp.zbox(low, high)
    with pytest.raises(xg.RuleError, match="sigma is a deviation"):
        lrp.smooth(lambda p: p, low, sigma=backend.array(-(array(3) ** 2)))


@pytest.mark.parametrize(
    ("take", "words"),
    [
        (lambda x: lrp.smooth(lambda p: p, x, sigma=float("nan")), "sigma is a deviation.*nan"),
        (lambda x: lrp.smooth(lambda p: p, x, sigma=-0.1), "sigma is a deviation"),
        (lambda x: lrp.smooth(lambda p: p, x, sigma="0.1"), "sigma is a number or a tensor"),
        (lambda x: lrp.smooth(lambda p: p, x, sigma=np.zeros(4)), r"sigma of shape \(4,\)"),
        (
            lambda x: lrp.smooth(lambda p: p[0], x),
            r"of shape \(2, 3\).*shape \(3,\): give the grad",
        ),
        (lambda x: lrp.integrated(lambda p: p.sum(), x), r"returned shape \(\): give the gradient"),
        (lambda x: lrp.integrated(lambda p: (p,), x), "returned a tuple: give the gradient"),
        (lambda x: lrp.smooth(lambda p: p, x, n=2.5), "whole number of 1 or more, not 2.5"),
        (lambda x: lrp.integrated(lambda p: p, x, n=True), "whole number"),
        (lambda x: lrp.integrated(lambda p: p, x, n="3"), "whole number"),
        (lambda x: lrp.integrated(lambda p: p, x, np.zeros(4)), r"shape \(4,\).*\(2, 3\)"),
        (lambda x: lrp.integrated(lambda p: p, x, np.zeros((5, 2, 3))), r"shape \(5, 2, 3\)"),
        (lambda x: lrp.integrated(lambda p: p, x, "zero"), "baseline is a number or a tensor"),
    ],
)
def test_a_mean_of_gradients_refuses_what_it_cannot_take(take: Any, words: str) -> None:
    with pytest.raises(xg.RuleError, match=words):
        take(array(2, 3))


def test_a_rule_over_a_layer_is_saved_and_loaded(tmp_path: Path) -> None:
    x, weight, bias = array(2, 3), array(3, 4), array(4)
    layer = lrp.gamma(0.5).over("linear")
    out, pull = xg.vjp(layer, x, weight, bias)
    _ = layer(x, weight)  # whose bias has no shape
    xg.save(layer, tmp_path / "layer.json")
    loaded = xg.load(tmp_path / "layer.json")  # a document has no defaults
    same, pull_loaded = xg.vjp(loaded, x, weight, bias, None, 0.5, 1e-6)
    np.testing.assert_array_equal(same, out)
    np.testing.assert_array_equal(pull_loaded(some(out))[0], pull(some(out))[0])
