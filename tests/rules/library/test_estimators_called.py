"""The Functions of the library as one calls them: what does not fit is refused where it is given,
compilers, keys, files and the command line take them.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest
from typer.testing import CliRunner

import multigrad as xg
from multigrad.command.app import app

from ...harness.estimator_cases import (
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
    each_function,
    pulled,
)

# --- arguments -----------------------------------------------------------------------------------

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
        with pytest.raises(xg.GradientError, match="tensor for argument 'x'; expected one of"):
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
    invoke = CliRunner().invoke
    shown = invoke(app, ["show", "estimators.lsq"])
    assert shown.exit_code == 0 and "lsq(x: T[...], step" in shown.output
    refused = invoke(app, ["show", "estimators.lsqq"])
    assert refused.exit_code == 2 and "did you mean 'lsq'" in refused.output
