"""The Functions of the library have the papers' numbers on every backend, at edges and in short
floats.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest

import multigrad as xg

from ...harness.commands import invoke
from ...harness.estimator_cases import (
    ARGUMENTS,
    BFLOAT16,
    CASES,
    CATALOGUE,
    FLOAT16,
    INF,
    NAN,
    RANDOM,
    STEPS,
    TABLE,
    E,
    G,
    X,
    arguments_of,
    each_case,
    each_function,
    pulled,
    slope,
)
from ...harness.estimator_oracles import ORACLES

# --- numbers -------------------------------------------------------------------------------------


def test_every_function_has_an_oracle_and_a_case() -> None:
    assert set(CATALOGUE) == set(ORACLES) | RANDOM
    assert {name for name, _ in CASES} == set(ORACLES)
    assert all(getattr(E, name) is function for name, function in CATALOGUE.items())


@each_case
def test_outputs_and_gradients_are_those_of_the_paper(
    backend: Any, name: str, rest: tuple[Any, ...]
) -> None:
    found, gradients = pulled(backend, CATALOGUE[name], X, *rest)
    expected, right = ORACLES[name](G, X, *rest)
    for mine, other in zip(optree.tree_leaves(found), optree.tree_leaves(expected), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-13, atol=1e-14)
    tensors = [each for each in gradients if each is not None]
    assert len(tensors) == 1 + sum(isinstance(each, np.ndarray) for each in rest)
    for mine, other in zip(tensors, right, strict=False):
        assert mine.shape == np.shape(other)
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-13)


@each_function
def test_the_same_numbers_in_shorter_floats(backend: Any, name: str) -> None:
    function = CATALOGUE[name]
    for dtype in (np.float32, FLOAT16, BFLOAT16):
        args = [
            each.astype(dtype) if isinstance(each, np.ndarray) else each
            for each in arguments_of(name)
        ]
        report = xg.parity(function, *args, backends=[backend.name])
        assert report.ok, f"{np.dtype(dtype)}: {report}"


@pytest.mark.parametrize("step", [0.25, np.array(0.25), np.array([0.25]), np.full((5, 8), 0.25)])
def test_a_step_for_all_or_for_each_element(step: Any) -> None:
    y, pullback = xg.vjp(E.lsq, X, step)
    grad_x, grad_step = pullback(G)
    expected, (right, right_step) = ORACLES["lsq"](G, X, np.asarray(step))
    np.testing.assert_allclose(y, expected, rtol=1e-14)
    np.testing.assert_array_equal(grad_x, right)
    if isinstance(step, float):
        assert grad_step is None
    else:
        np.testing.assert_allclose(grad_step, right_step, rtol=1e-12)


def test_turning_back_what_was_turned_is_what_it_was() -> None:
    # R x = q, so that <R^T g, x> = <g, q>, whatever g is.
    q = np.random.default_rng(3).standard_normal(X.shape)
    grad_x, _ = xg.vjp(E.rotation_trick, X, q)[1](G)
    np.testing.assert_allclose((grad_x * X).sum(-1), (G * q).sum(-1), rtol=1e-11)


@pytest.mark.needs("torch")
def test_lsq_is_torchs_own_where_rounding_does_not_clip() -> None:
    import torch

    # torch looks for what is clipped after rounding, the paper before: half a step at each end.
    steps = STEPS.astype(np.float32)
    v = X / STEPS
    x = np.where((np.abs(v) > 7) & (np.abs(v) < 8.6), 0.3 * STEPS, X).astype(np.float32)
    zero, factor = torch.zeros(8), 1 / np.sqrt(x.size / 8 * 7)
    native = torch._fake_quantize_learnable_per_channel_affine
    found = []
    for function in (
        lambda x, s: E.lsq(x, s, 4),
        lambda x, s: native(x, s, zero, 1, -8, 7, factor),
    ):
        leaves = [torch.tensor(each, requires_grad=True) for each in (x, steps)]
        y = function(*leaves)
        y.backward(torch.tensor(G, dtype=y.dtype))
        found.append([each.detach().numpy() for each in (y, *(leaf.grad for leaf in leaves))])
    for mine, other in zip(*found, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


# --- edges ---------------------------------------------------------------------------------------


@each_function
def test_nan_is_not_hidden_and_leaves_its_neighbors(name: str) -> None:
    x, *rest = arguments_of(name)
    x = x.copy()
    x[4, 3] = NAN
    y = CATALOGUE[name].keyed(3)(x, *rest)
    y = y[0] if isinstance(y, tuple) else y
    if name not in ("vq", "straight_through", "rotation_trick"):  # they give q
        assert np.isnan(y[4, 3])
    if name != "dorefa_weights":  # whose scale is that of the whole tensor
        assert np.isfinite(y[:4, :3]).all()


LANDMARKS: tuple[tuple[str, tuple[Any, ...], dict[float, float]], ...] = (
    ("ste_sign", (), {1.0: 1, -1.0: 1, 1.0000001: 0, -1.0000001: 0, INF: 0, NAN: 0}),
    ("ste_sign", (None,), {INF: 1, -INF: 1}),
    ("ste_sign", (INF,), {INF: 1, 3e38: 1}),
    ("approx_sign", (), {0.0: 2, 1.0: 0, -1.0: 0, 0.5: 1, INF: 0, -INF: 0}),
    ("swish_sign", (), {0.0: 5, INF: 0, -INF: 0, 1e300: 0}),
    ("dorefa_activations", (), {0.0: 1, 1.0: 1, -1e-9: 0, 1.0000001: 0}),
    ("pact", (2.0,), {0.0: 1, 2.0: 0, 1.9999: 1, -1e-9: 0, INF: 0}),
    ("lsq", (0.5, 3), {-2.0: 0, -1.999: 1, 1.5: 0, 1.499: 1, INF: 0, -INF: 0, NAN: 0}),
    ("clipped_relu", (), {0.0: 0, 1.0: 0, 1e-30: 1, 0.999: 1, INF: 0}),
    ("clamp_with_grad", (), {-1.0: 1, 1.0: 1, 1.5: 1, -1.5: 0}),
    ("learnable_step", (1.0,), {0.0: 0.25, INF: 0, -INF: 0, 1e300: 0}),
    ("learnable_step", (1.0, "arctan"), {0.0: 0.5, INF: 0, -INF: 0, 1e300: 0}),
)


@pytest.mark.parametrize(("name", "rest", "slopes"), LANDMARKS)
def test_slopes_at_edges(name: str, rest: tuple[Any, ...], slopes: dict[float, float]) -> None:
    np.testing.assert_allclose(slope(name, list(slopes), *rest), list(slopes.values()), atol=1e-30)


def test_signs_of_zeros_and_ties() -> None:
    zeros = np.array([0.0, -0.0])
    for name, expected in (("approx_sign", 2), ("dorefa_activations", 1)):
        np.testing.assert_array_equal(slope(name, zeros), [expected, expected])
    np.testing.assert_array_equal(slope("pact", zeros, 1.0), [1, 1])
    for name in ("ste_sign", "approx_sign", "swish_sign"):
        np.testing.assert_array_equal(CATALOGUE[name](zeros), [1.0, 1.0])
    np.testing.assert_array_equal(E.ste_heaviside(zeros), [0.0, 0.0])
    np.testing.assert_array_equal(E.ste_ternary(np.array([0.05, -0.05, 0.04, 0.0])), [1, -1, 0, 0])
    ties = np.array([0.5, 1.5, 2.5, -0.5, -1.5])
    np.testing.assert_array_equal(E.ste_round(ties), [0, 2, 2, 0, -2])
    np.testing.assert_array_equal(E.lsq(ties, 1.0), [0, 2, 2, 0, -2])
    np.testing.assert_array_equal(E.ste_trunc(-ties), [0, -1, -2, 0, 1])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@each_function
def test_no_finite_input_overflows_in_sixteen_bits(name: str, dtype: Any) -> None:
    top = 65504.0 if dtype == FLOAT16 else 3.3e38
    x = np.array([[0.0, 6e-8, 1e-4, 1.0, 300.0, 0.25 * top, top, -top]]).astype(dtype)
    if name == "bernoulli_straight_through":
        x = np.clip(x, 0, 1).astype(dtype)
    tiny = np.array(6e-8 if dtype == FLOAT16 else 1e-38, dtype)
    rest = {
        "lsq": (tiny,), "lsq_plus": (tiny, tiny), "pact": (tiny,), "learnable_step": (tiny + 1,),
        "fake_quantize": (-tiny, tiny), "gumbel_softmax": (0.01,), "rotation_trick": (x[:, ::-1],),
        "straight_through": (x,), "replace_grad": (x,), "quantization_noise": (x, 0.5),
        "n2uq": (np.ones(3, dtype),), "vq": (np.eye(8).astype(dtype),),
    }.get(name, ())  # fmt: skip
    if name == "vq" and dtype == BFLOAT16:
        x = (x / 1e20).astype(dtype)  # squares of its elements are among what is compared
    y, pullback = xg.vjp(CATALOGUE[name].keyed(3), x, *rest)
    assert y.dtype == dtype and np.isfinite(y.astype(np.float32)).all()
    for gradient in pullback(np.ones_like(x)):
        if gradient is not None:
            assert gradient.dtype == dtype and np.isfinite(gradient.astype(np.float32)).all()


def test_a_sum_over_many_elements_fits_into_sixteen_bits() -> None:
    x = np.full(100_000, 100.0, FLOAT16)  # 7 * 100,000 is more than float16 has
    step = np.array(0.5, FLOAT16)
    _, grad_step = xg.vjp(E.lsq, x, step)[1](np.ones_like(x))
    np.testing.assert_allclose(float(grad_step), 7e5 / np.sqrt(7e5), rtol=1e-3)


def test_the_rotation_trick_at_zeros_and_opposites() -> None:
    x = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0], [1e-200, 0.0], [1e200, 0.0]])
    q = np.array([[1.0, 2.0], [0.0, 0.0], [-3.0, -4.0], [0.0, 1e-200], [0.0, 1e200]])
    g = np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [0.0, 1.0], [0.0, 1.0]])
    grad_x, _ = xg.vjp(E.rotation_trick, x, q)[1](g)
    np.testing.assert_allclose(
        grad_x, [[1, 2], [0, 0], [-3, -4], [1, 0], [1, 0]], rtol=1e-12, atol=1e-12
    )


def test_weights_that_are_all_zero_have_gradients(backend: Any) -> None:
    y, (gradient,) = pulled(backend, E.dorefa_weights, np.zeros((2, 3)), g=np.ones((2, 3)))
    np.testing.assert_allclose(np.abs(y), 1 / 3, rtol=1e-12)
    np.testing.assert_array_equal(gradient, np.ones((2, 3)))


@each_function
def test_nothing_and_one_number_go_through(backend: Any, name: str) -> None:
    rest = ARGUMENTS[name]
    scalar_rest = [np.array(0.5) if isinstance(each, np.ndarray) else each for each in rest]
    vectors = {"vq", "n2uq", "rotation_trick", "gumbel_softmax"}
    alike = {"straight_through", "quantization_noise", "rotation_trick"}
    for shape in ((0, 8), ()):
        if shape == () and name in vectors:
            continue
        own = rest if name in ("vq", "n2uq") else scalar_rest
        own = [np.zeros(shape) if name in alike and i == 0 else v for i, v in enumerate(own)]
        own = [
            np.asarray(v + 1.0) if name == "fake_quantize" and i == 1 else v
            for i, v in enumerate(own)
        ]
        y, gradients = pulled(
            backend, CATALOGUE[name].keyed(3), np.full(shape, 0.25), *own, g=np.zeros(shape)
        )
        y = y[0] if isinstance(y, tuple) else y
        assert y.shape == gradients[0].shape == shape
        assert np.isfinite(gradients[0]).all()


# --- as one calls them: what does not fit is refused, compilers, keys and files take them ---------


REFUSED: tuple[tuple[str, tuple[Any, ...], dict[str, Any], str], ...] = (
    ("lsq", (STEPS[:5],), {}, r"'step' of shape \(5,\) for 'x' of shape \(5, 8\); .*\(5, 1\)"),
    ("lsq", (np.ones((1, 5, 8)),), {}, r"'step' of shape \(1, 5, 8\)"),
    ("lsq", (0.5, 0), {}, "'bits' is >= 1 and <= 16, got 0"),
    ("lsq", (0.5, 1), {}, "'bits' is >= 2 with signed = True"),
    ("lsq", (0.5, 17), {}, "'bits' is >= 1 and <= 16, got 17"),
    ("lsq", (-0.5,), {}, "'step' is > 0 and finite, got -0.5"),
    ("lsq", (NAN,), {}, "'step' is > 0 and finite, got nan"),
    ("lsq", (0.5, 4.0), {}, "'bits' is an int, got float 4.0"),
    ("lsq", (0.5, 4, 1), {}, "'signed' is a bool, got int 1"),
    ("lsq", (None,), {}, "'step' is a number or a tensor, got NoneType"),
    ("lsq", (), {}, "lacks step"),
    ("lsq", (0.5,), {"bit": 4}, "takes no .bit.; did you mean .bits.*arguments: x, step, bits"),
    ("lsq_plus", (0.5, STEPS[:3]), {}, r"'offset' of shape \(3,\)"),
    ("pact", (0.0,), {}, "'alpha' is > 0"),
    ("fake_quantize", (1.0, -1.0), {}, "'low' is < high and finite, got 1.0 with high = -1.0"),
    ("fake_quantize", (-1.0, STEPS[:3]), {}, r"'high' of shape \(3,\)"),
    ("clamp_with_grad", (1.0, -1.0), {}, "'min' is <= max"),
    ("ste_sign", (-1.0,), {}, "'clip' is >= 0, got -1.0"),
    ("quantization_noise", (X, 1.5), {}, "'factor' is >= 0 and <= 1"),
    ("gumbel_softmax", (0,), {}, "'tau' is > 0 and finite, got 0.0"),
    ("learnable_step", (1.0, "arctn"), {}, "'kind' is one of .*did you mean 'arctan'"),
    ("straight_through", (STEPS,), {}, "expected the same shape"),
    ("rotation_trick", (STEPS,), {}, "expected the same shape"),
    ("vq", (TABLE[:, :4],), {}, r"expected \(number of codes, 8\)"),
    ("n2uq", (TABLE,), {}, "expected one axis"),
)


@pytest.mark.parametrize(
    ("name", "rest", "named", "message"),
    REFUSED,
    ids=[f"{r[0]}-{i}" for i, r in enumerate(REFUSED)],
)
def test_what_does_not_fit_is_refused_at_the_call(
    name: str, rest: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(xg.RuleError, match=f"function '{name}'.*{message}"):
        CATALOGUE[name](X, *rest, **named)


def test_a_shape_that_does_not_fit_is_refused_on_every_framework(backend: Any) -> None:
    x, step = backend.array(X), backend.array(STEPS[:5])
    for call in (lambda: E.lsq(x, step), lambda: xg.vjp(E.lsq, x, step)):
        with pytest.raises(xg.RuleError, match=r"'step' of shape \(5,\)"):
            call()


def test_what_is_no_float_is_refused(backend: Any) -> None:
    for x in (np.arange(3), np.array([True, False]), np.array([1j])):
        with pytest.raises(xg.GradientError, match="for argument 'x'; expected one of"):
            E.ste_round(backend.array(x))


@each_function
def test_a_result_has_the_dtype_of_the_first_argument_and_gradients_that_of_their_own(
    backend: Any, name: str
) -> None:
    # Parameters are float32 where activations are 16 bits.
    x, *rest = arguments_of(name)
    defaults = [each.default for each in CATALOGUE[name].arguments[1 + len(rest) :]]
    rest = [
        np.asarray(each, np.float32) if isinstance(each, np.ndarray | float) else each
        for each in (*rest, *defaults)
    ]
    args = (x.astype(FLOAT16), *rest)
    y, gradients = pulled(backend, CATALOGUE[name].keyed(3), *args)
    assert (y[0] if isinstance(y, tuple) else y).dtype == FLOAT16
    for argument, gradient in zip(args, gradients, strict=True):
        assert gradient is None or gradient.dtype == argument.dtype


COMPILED = pytest.mark.backends("torch", "jax", "tensorflow")
OPTIONS: dict[str, dict[str, Any]] = {"torch": {"fullgraph": True, "backend": "aot_eager"}}


@COMPILED
def test_compiled_code_gives_the_numbers_of_eager_code(backend: Any) -> None:
    def quantized(x: Any, step: Any) -> Any:
        return E.lsq(x, step, bits=3) + E.ste_sign(x) + E.fake_quantize(x, -1.0, 1.0)

    options = OPTIONS.get(backend.name, {})
    x, step = X.astype(np.float32), STEPS.astype(np.float32)
    eager = pulled(backend, quantized, x, step)
    compiled = pulled(backend, xg.jit(quantized, backend.name, **options), x, step)
    for mine, other in zip(optree.tree_leaves(eager), optree.tree_leaves(compiled), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@COMPILED
def test_a_compiler_tells_of_a_shape_that_does_not_fit(backend: Any) -> None:
    x, step = backend.array(X), backend.array(STEPS[:5])
    compiled = xg.jit(lambda x: E.lsq(x, step), backend.name)
    # AutoGraph makes errors of its own of those in a tf.function.
    with pytest.raises(Exception, match=r"'step' of shape \(5,\)"):
        compiled(x)


# --- draws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_a_key_gives_the_same_draws_on_every_framework(backend: Any, name: str) -> None:
    x = arguments_of(name)[0].astype(np.float32)
    expected = xg.vjp(CATALOGUE[name].keyed(7), x)
    found, (gradient,) = pulled(backend, CATALOGUE[name].keyed(7), x)
    np.testing.assert_array_equal(found, expected[0])
    np.testing.assert_allclose(gradient, expected[1](G.astype(np.float32))[0], rtol=1e-5, atol=1e-6)


def test_hard_gumbel_draws_are_the_argmax_of_the_soft_ones_and_share_their_gradient() -> None:
    logits = np.random.default_rng(1).standard_normal((20_000, 3))
    g = np.random.default_rng(2).standard_normal(logits.shape)
    hard, pull_hard = xg.vjp(E.gumbel_softmax.keyed(5), logits, 0.5, True)
    soft, pull_soft = xg.vjp(E.gumbel_softmax.keyed(5), logits, 0.5, False)
    np.testing.assert_array_equal(hard, np.eye(3)[soft.argmax(-1)])
    np.testing.assert_array_equal(pull_hard(g)[0], pull_soft(g)[0])
    # The Jacobian of softmax, by hand, at the y that was drawn.
    expected = soft * (g - (g * soft).sum(-1, keepdims=True)) / 0.5
    np.testing.assert_allclose(pull_soft(g)[0], expected, rtol=1e-10, atol=1e-12)
    # The Gumbel trick: a class is drawn with its softmax probability.
    one = np.tile(np.array([0.0, 1.0, 2.0]), (20_000, 1))
    rates = E.gumbel_softmax.keyed(6)(one).mean(0)
    np.testing.assert_allclose(rates, np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum(), atol=0.015)


def test_the_temperature_may_be_learned(backend: Any) -> None:
    def total(tau: float) -> Any:
        return (G * E.gumbel_softmax.keyed(5)(X, tau, False)).sum()

    _, gradients = pulled(backend, E.gumbel_softmax.keyed(5), X, np.array(0.7), False)
    expected = (total(0.7 + 1e-6) - total(0.7 - 1e-6)) / 2e-6
    np.testing.assert_allclose(gradients[1], expected, rtol=1e-6)


def test_masked_logits_are_never_drawn() -> None:
    logits = np.where(np.arange(4) == 1, -INF, np.zeros((100, 4)))
    y, pullback = xg.vjp(E.gumbel_softmax.keyed(1), logits, np.array(0.1))
    assert not y[:, 1].any() and (y.sum(-1) == 1).all()
    for gradient in pullback(np.random.default_rng(0).standard_normal(y.shape))[:2]:
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["bernoulli_straight_through", "bernoulli_st"])
def test_spikes_come_at_their_rate(name: str) -> None:
    x = np.tile([0.1, 0.5, 0.9], (20_000, 1))
    given = x if name == "bernoulli_straight_through" else np.log(x / (1 - x))
    y, pullback = xg.vjp(CATALOGUE[name].keyed(2), given)
    assert set(np.unique(y)) == {0.0, 1.0}
    np.testing.assert_allclose(y.mean(0), x[0], atol=0.015)
    expected = np.ones_like(x) if name == "bernoulli_straight_through" else x * (1 - x)
    np.testing.assert_allclose(pullback(np.ones_like(x))[0], expected, rtol=1e-12)


# --- as Functions --------------------------------------------------------------------------------


@each_function
def test_each_is_shown_checked_saved_and_pickled_as_any_function(name: str, tmp_path: Path) -> None:
    function = CATALOGUE[name]
    assert name in xg.show(function) and "def " in xg.source(function, "numpy")
    assert "import multigrad" not in xg.source(function, "numpy", standalone=True)
    assert xg.check(function).ok
    assert pickle.loads(pickle.dumps(function)) is function
    args = arguments_of(name)
    expected = function.keyed(3)(*args)
    xg.save(function, tmp_path / "f.json")
    loaded = xg.load(tmp_path / "f.json").keyed(3)
    for mine, other in zip(
        optree.tree_leaves(loaded(*function.prepare(args, {}))),
        optree.tree_leaves(expected),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, other)


@each_function
def test_the_docstring_has_a_forward_gradients_and_a_source(name: str) -> None:
    forward, gradients, source = E.describe(CATALOGUE[name])
    assert forward.endswith(".") and gradients.endswith(".") and source.endswith(".")
    for argument in CATALOGUE[name].arguments:
        if argument.annotation == "Tensor":
            assert argument.name in gradients


def test_the_command_line_finds_them_by_name() -> None:
    shown = invoke("show", "estimators.lsq")
    assert shown.exit_code == 0 and "lsq(x: T[...], step" in shown.output
    refused = invoke("show", "estimators.lsqq")
    assert refused.exit_code == 2 and "did you mean 'lsq'" in refused.output
