"""`xg.check`, `xg.parity`, and the assertions of `multigrad.testing`: do they see what is wrong,
and only that?
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleTypeError
from multigrad.testing import assert_gradients, assert_parity

from ..harness.torch_class import torch_class

pytestmark = pytest.mark.anywhere

xp = xg.xp
X = np.array([-1.0, 0.5, 1.7, 3.0])


def clip(x: Any, limit: float) -> Any:
    return xp.clip(x, 0.0, limit)


def right(grad_out: Any, x: Any, limit: float) -> Any:
    return grad_out * ((x > 0) & (x < limit)), None


def wrong(grad_out: Any, x: Any, limit: float) -> Any:
    return 3.0 * grad_out, None


def straight_through(grad_out: Any, x: Any, limit: float) -> Any:
    return grad_out, None


def test_a_right_gradient_is_ok_on_every_backend(backend: Any) -> None:
    report = xg.check(xg.function(clip, right), X, 2.0, backend=backend.name)
    assert report.ok
    assert report.max_error < 1e-8
    assert report.compared == 4
    assert "the gradient is the true one" in str(report)


def test_a_wrong_gradient_is_not_ok_and_its_worst_place_is_named(backend: Any) -> None:
    report = xg.check(xg.function(clip, wrong), X, 2.0, backend=backend.name)
    assert not report.ok
    assert report.worst is not None
    assert report.worst.argument == "x"
    assert report.worst.index in [(0,), (3,)]
    assert report.worst.expected == 0
    assert report.max_error == report.worst.given > 0.5
    assert f"worst at x[{report.worst.index[0]}]" in str(report)


def test_what_takes_no_list_says_what_to_give() -> None:
    def first(x: Any) -> Any:
        return x.reshape(-1)[:1]

    with pytest.raises(RuleTypeError, match=r"a list of numbers: .*; for a tensor, give numpy.arr"):
        xg.check(first, [1.0, 2.0])
    assert xg.check(lambda pair: pair[0] * pair[1], [1.0, 2.0]).ok


def test_an_error_in_one_element_of_one_argument_is_found() -> None:
    def product(x: Any, w: Any) -> Any:
        return x @ w

    def backward(grad_out: Any, x: Any, w: Any) -> Any:
        grad_w = x.T @ grad_out
        grad_w[2, 1] = 0.0
        return grad_out @ w.T, grad_w

    generator = np.random.default_rng(1)
    x, w = generator.standard_normal((3, 4)), generator.standard_normal((4, 2))
    report = xg.check(xg.function(product, backward), x, w)
    assert not report.ok
    assert (report.worst.argument, report.worst.index) == ("w", (2, 1))  # type: ignore[union-attr]


def test_kinks_are_left_out_of_the_verdict_and_said() -> None:
    report = xg.check(xg.function(clip, right), np.array([0.0, 0.5, 2.0]), 2.0)
    assert report.ok
    assert [kink.at for kink in report.kinks] == [0.0, 2.0]
    assert report.compared == 1
    assert "left out, as there is no derivative: x = 0, x = 2" in str(report)


@pytest.mark.parametrize(
    ("function", "kinks"),
    [
        (xg.function(lambda x: xp.heaviside(x), lambda grad_out, x: grad_out * 0.0), [0.0]),
        (xg.function(lambda x: x * xp.abs(x)), []),
    ],
)
def test_a_jump_is_left_out_and_a_kink_of_the_derivative_is_not(function: Any, kinks: Any) -> None:
    report = xg.check(function, np.array([-1.0, 0.0, 1.0]))
    assert report.ok
    assert [kink.at for kink in report.kinks] == kinks


def test_a_gradient_that_is_not_finite_is_not_ok() -> None:
    root = xg.function(lambda x: x * x, lambda grad_out, x: grad_out * 2.0 * x / (x - x))
    report = xg.check(root, np.array([1.0, 2.0]))
    assert not report.ok
    assert not np.isfinite(report.max_error)


def test_a_rule_by_itself_is_compared_with_the_identity() -> None:
    for rule in ("triangular", "clip_norm", "gradient_reversal"):
        report = xg.check(xg.get(rule), np.linspace(-0.8, 0.7, 4))
        assert report.is_surrogate and report.compared == 4
    assert report.max_error == 2.0  # -1 where the identity has 1


def test_a_surrogate_is_described_not_failed(backend: Any) -> None:
    act = xg.activation("Heaviside", rule="triangular", params={"width": 2.0})
    report = xg.check(act, np.array([-3.0, -1.0, 1.0, 0.5]), backend=backend.name)
    assert report.ok
    assert report.is_surrogate
    assert report.max_error == 0.75  # the surrogate at 0.5, where the true derivative is zero
    assert [row.expected for row in report.rows] == [0, 0, 0, 0]
    assert "the surrogate differs from the true derivative by at most 0.75" in str(report)


def test_a_rule_under_a_forward_is_a_surrogate_bound_or_not() -> None:
    spike = xg.get("triangular").under("Heaviside")
    for function, width in ((spike, 1.0), (spike.bind({"width": 0.5}), 0.5)):
        report = xg.check(function, np.array([-3.0, 0.25, 2.0]))
        assert report.ok and report.is_surrogate
        assert report.name == "triangular under Heaviside"
        assert report.max_error == 1 - 0.25 / width
    assert not xg.check(xg.function(lambda x: x * x), np.ones(2)).is_surrogate


def test_an_activation_without_a_rule_has_its_true_derivative() -> None:
    for name in ("GELU", "SiLU", "Softplus", "ELU", "Tanh"):
        report = xg.check(xg.activation(name))
        assert report.ok, report
        assert report.compared > 30


def test_several_arguments_and_outputs_are_compared() -> None:
    function = xg.function(lambda x, w: {"y": xp.tanh(x @ w), "z": xp.exp(x)})
    report = xg.check(function, np.full((2, 3), 0.3), np.full((3, 2), 0.1))
    assert report.ok
    assert report.compared == 12


def test_inputs_are_made_up_from_the_signature() -> None:
    assert xg.check(xg.function(lambda x, w: x * xp.sin(w))).compared == 48


def test_parity_of_a_function_on_every_backend() -> None:
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
    report = xg.parity(xg.function(lambda x, w: xp.tanh(x @ w)), x, w)
    assert report.ok, report
    assert {row.what for row in report.rows} == {"output", "gradient of x", "gradient of w"}
    assert {row.backend for row in report.rows} == {r.name for r in xg.backends() if r.installed}
    assert report.max_abs < 1e-5


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_parity_of_rules_in_each_dtype(backend: Any, dtype: str) -> None:
    x = np.linspace(-2, 2, 33).astype(dtype)
    for rule in ("triangular", "arctan", "fast_sigmoid", "full_jam"):
        act = xg.activation("Heaviside", rule=rule)
        report = xg.parity(act, x, backends=["numpy", backend.name])
        assert report.ok, report
        assert all(row.dtype == dtype for row in report.rows)


def test_parity_sees_a_backend_that_computes_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from multigrad.backend import Kernels
    from multigrad.core import ops
    from multigrad.core.backend.discovery import load_backend

    numpy_backend = load_backend("numpy")
    rows = dict(numpy_backend.kernels.rows)
    rows[ops.TANH] = lambda x: np.tanh(x) * (1 + 1e-5)
    monkeypatch.setattr(Kernels, "__setattr__", object.__setattr__)
    monkeypatch.setattr(numpy_backend.kernels, "rows", rows)
    report = xg.parity(
        xg.function(lambda x: xp.tanh(x) * 1.0), np.linspace(-1, 1, 9), backends=["numpy"]
    )
    assert not report.ok
    assert "NOT THE SAME NUMBERS" in str(report)
    assert "in float64" in report.rows[0].problem


def test_assertions_pass_the_right_and_show_the_wrong() -> None:
    assert_gradients(xg.function(clip, right), X, 2.0)
    with pytest.raises(AssertionError, match="THE GRADIENT IS WRONG"):
        assert_gradients(xg.function(clip, wrong), X, 2.0)
    assert assert_parity("triangular", backends=["numpy"]).ok


def test_what_the_audit_takes_for_meant_to_differ_passes_and_says_why() -> None:
    assert not xg.check(xg.function(clip, straight_through), X, 2.0).ok  # it is flat in places
    passing = xg.function(lambda x, limit: xp.round(clip(x, limit)), straight_through)
    report = xg.check(passing, X, 2.0)
    assert report.ok and report.is_surrogate and xg.audit(passing, X, 2.0, laws=["derivative"]).ok
    assert "it is straight-through, which is meant to differ" in str(report)
    assert not xg.check(xg.function(clip, wrong), X, 2.0).intention
    with pytest.raises(AssertionError, match="meant to differ"):
        assert_gradients(passing, X, 2.0)


def test_an_assertion_that_compared_nothing_fails() -> None:
    with pytest.raises(AssertionError, match="nothing was compared"):
        assert_gradients(xg.function(clip, right), np.array([0.0, 2.0]), 2.0)


def test_a_gradient_that_is_tiny_is_compared_with_its_own_size() -> None:
    def tiny(x: Any) -> Any:
        return x * 1e-8

    def uneven(x: Any, w: Any) -> Any:
        return x * 1e-4 + w * 1e-9

    x = np.linspace(-1.0, 1.0, 5)
    rows: list[tuple[Any, tuple[Any, ...], bool]] = [
        ((tiny, lambda up, x: up * 1e-8), (x,), True),
        ((tiny, lambda up, x: up * 2e-8), (x,), False),
        ((uneven, lambda up, x, w: (up * 1e-4, up * 3e-9)), (x + 2.0, x + 2.0), False),
    ]
    for pair, inputs, is_right in rows:
        assert xg.check(pair, *inputs).ok == is_right


def test_rounding_of_a_gradient_that_is_zero_is_no_error() -> None:
    def normed(x: Any) -> Any:
        return xp.sum(x / xp.sum(x)) + 0 * x

    assert xg.check(xg.function(normed), np.linspace(1.0, 2.0, 7)).ok


def test_a_report_that_compared_nothing_is_not_ok_and_says_why() -> None:
    step = xg.function(lambda x: xp.where(x > 0, 1.0, 0.0) + 0 * x)
    report = xg.check(step, np.zeros(3))
    assert (report.ok, report.compared) == (False, 0)
    assert "nothing was compared: there is no derivative at any element" in str(report)
    empty = xg.check(xg.function(lambda x: x * 2.0), np.zeros((0, 3)))
    assert not empty.ok
    assert "no element of a float" in str(empty)
    outside = xg.audit((np.sqrt, lambda grad_out, x: 7.0 * grad_out), np.array([-1.0, -4.0]))
    assert "no output is finite at these inputs" in str(outside)
    assert not outside.ok
    surrogate = xg.check(xg.activation("Heaviside", rule="triangular"), np.zeros(2))
    assert not surrogate.ok


@pytest.mark.parametrize("factor", [0.5, 7.0])
def test_what_lies_outside_of_the_domain_hides_no_other_element(factor: float) -> None:
    pair = np.sqrt, lambda grad_out, x: factor * grad_out / np.sqrt(x)
    x = np.array([-1.0, 1.0, 4.0, 0.0])  # NaN, and a pole
    report = xg.check(pair, x)
    assert (report.ok, report.compared, len(report.kinks)) == (factor == 0.5, 2, 2)
    for laws in (["derivative"], ["second derivative"], None):
        assert xg.audit(pair, x, laws=laws).ok == (factor == 0.5 or laws == ["second derivative"])


@pytest.mark.needs("jax")
def test_arrays_are_taken_where_the_code_is_at_home() -> None:
    import jax

    cube = jax.custom_vjp(lambda x: x**3)
    cube.defvjp(lambda x: (x**3, x), lambda x, g: (g * 3 * x**2,))
    for given in (cube, lambda x: jax.numpy.tanh(x) ** 3):
        report = xg.check(given, np.array([0.3, 1.2, 2.5]))  # no numbers of float32
        assert (report.ok, report.backend, report.compared) == (True, "jax", 3)


def test_what_is_printed_is_a_derivative() -> None:
    assert "gradient 3, expected 6" in str(xg.check((np.square, np.multiply), np.array([3.0])))
    # An error that cancels in the outputs' sum is shown by random weights.
    turned = xg.function(lambda x: x - xp.flip(x, 0), lambda grad_out, x: 0.0 * grad_out)
    assert not xg.check(turned, np.array([1.0, 3.0])).ok


def test_what_has_no_gradient_is_refused_with_what_to_give() -> None:
    class Square:
        """No function, nor an autograd.Function."""

    for given, message in (
        (Square, "expected a custom gradient.* got a Square"),
        (np, "got a module; multigrad audit numpy audits all"),
        ("my_ops.py:Square", "import what it names.*multigrad audit my_ops.py:Square"),
        (lambda x: None, "returns no tensor of floats"),
    ):
        with pytest.raises(xg.RuleError, match=message):
            xg.check(given, np.ones(3))


def test_a_pair_is_taken_as_by_an_audit() -> None:
    pair = (lambda x: x * x), (lambda grad_out, x: grad_out * x)
    for door in (xg.check, xg.audit):
        assert not door(pair, np.array([1.0, 3.0])).ok


@pytest.mark.needs("torch")
def test_a_class_is_taken_as_by_an_audit_and_its_backward_runs() -> None:
    import torch

    @torch_class(lambda ctx, grad_out: grad_out * ctx.saved_tensors[0])
    def Halved(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    x = torch.tensor([1.0, 3.0])
    assert not xg.check(Halved, x).ok
    assert xg.parity(Halved, x).ok
    with pytest.raises(xg.RuleError, match=r"give \[x\], not x"):
        xg.gate(Halved, Halved, x)
    with pytest.raises(xg.RuleError, match=r"xg\.convert takes the class of a custom gradient"):
        xg.show(Halved)
    with pytest.raises(xg.RuleError, match="got the Function 'Halved'"):
        xg.use(xg.convert(Halved)).__enter__()
    for door in (xg.function, xg.activation):
        with pytest.raises(TypeError, match=r"give xg\.convert\(Halved\)"):
            door(Halved)
