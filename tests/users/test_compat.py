"""The stand-ins for snnTorch's and SpikingJelly's surrogate modules, without these packages.

tests/peers compares them with the packages themselves.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.expected.curves import CURVES
from multigrad_conformance.oracles import FLOAT32, Draws, exact

torch: Any = pytest.importorskip("torch")

from multigrad.compat import norse, snntorch
from multigrad.compat.spikingjelly import surrogate

pytestmark = pytest.mark.needs("torch")
X = np.array([-2.0, -0.25, -0.0, 0.0, 0.25, 0.5, 2.0], np.float32)


def pulled(spike: Any) -> tuple[Any, Any]:
    x = torch.from_numpy(X).requires_grad_()
    y = spike(x)
    return y.detach().numpy(), torch.autograd.grad(y.sum(), x)[0].numpy()


def expected_factor(rule: str, **params: Any) -> Any:
    g = np.ones_like(X)
    with np.errstate(all="ignore"):
        return CURVES[rule](exact(X), Draws((0, 0), g), **params).value.astype(FLOAT32)


SNNTORCH = {
    "straight_through_estimator": {}, "triangular": {"threshold": 0.5},
    "fast_sigmoid": {"slope": 10}, "atan": {"alpha": 3.0}, "heaviside": {}, "sigmoid": {"slope": 3},
    "spike_rate_escape": {"beta": 2, "slope": 5}, "LSO": {"slope": 0.3}, "SFS": {"B": 0.25},
}  # fmt: skip


@pytest.mark.parametrize("name", SNNTORCH)
def test_snntorchs_surrogates_step_at_zero_with_its_gradients(name: str) -> None:
    for params in ({}, SNNTORCH[name]):
        spike = getattr(snntorch.surrogate, name)(**params)
        for each in (spike, copy.deepcopy(spike), pickle.loads(pickle.dumps(spike))):
            y, grad = pulled(each)
            np.testing.assert_array_equal(y, X > 0)
            expected = expected_factor(f"snntorch.{name}", **params)
            np.testing.assert_allclose(grad, expected, rtol=1e-6, atol=1e-7)


def own(input_: Any, grad_input: Any, spikes: Any) -> Any:
    return grad_input * (1 - abs(input_)) + spikes


def test_snntorchs_custom_surrogates_and_classes() -> None:
    _, grad = pulled(snntorch.custom_surrogate(own))
    np.testing.assert_allclose(grad, (1 - abs(X)) + (X > 0))
    _, grad = pulled(lambda x: snntorch.FastSigmoid.apply(x, 10))
    np.testing.assert_allclose(grad, expected_factor("snntorch.fast_sigmoid", slope=10), rtol=1e-6)
    _, same = pulled(lambda x: snntorch.FastSigmoid.apply(x, slope=10))
    np.testing.assert_array_equal(same, grad)
    for call, words in (
        (lambda: snntorch.FastSigmoid.apply(torch.ones(2), 25, 3), "fast_sigmoid: too many"),
        (lambda: snntorch.FastSigmoid()(torch.ones(2)), r"fast_sigmoid\(\).*\.apply"),
        (lambda: snntorch.fast_sigmoid(torch.ones(2)), r"write surrogate.fast_sigmoid\(\)"),
        (lambda: snntorch.custom_surrogate(3), r"f\(input_, grad_input, spikes\), got 3"),
    ):
        with pytest.raises(xg.RuleError, match=words):
            call()
    assert snntorch.surrogate is snntorch
    with pytest.raises(AttributeError, match="fast_sigmoide"):
        snntorch.fast_sigmoide  # noqa: B018
    torch.manual_seed(0)
    below = pulled(snntorch.SSO(mean=0.5))[1][X <= 0]
    assert ((below >= 0) & (below < 0.2)).all() and len(set(below)) == len(below)


SPIKINGJELLY = {
    "PiecewiseQuadratic": ("piecewise_quadratic", {"alpha": 1.5}),
    "PiecewiseExp": ("piecewise_exp", {"alpha": 1.5}),
    "Sigmoid": ("sigmoid", {"alpha": 1.5}),
    "SoftSign": ("soft_sign", {"alpha": 1.5}),
    "SuperSpike": ("super_spike", {"alpha": 1.5}),
    "ATan": ("atan", {"alpha": 1.5}),
    "NonzeroSignLogAbs": ("nonzero_sign_log_abs", {"alpha": 1.5}),
    "Erf": ("erf", {"alpha": 1.5}),
    "PiecewiseLeakyReLU": ("piecewise_leaky_relu", {"w": 0.5, "c": 0.2}),
    "SquarewaveFourierSeries": ("squarewave_fourier_series", {"n": 4, "T_period": 6.0}),
    "S2NN": ("s2nn", {"alpha": 2.0, "beta": 3.0}),
    "QPseudoSpike": ("q_pseudo_spike", {"alpha": 3.0}),
    "LeakyKReLU": ("leaky_k_relu", {"leak": 0.2, "k": 2.0}),
    "FakeNumericalGradient": ("fake_numerical_gradient", {"alpha": 3.0}),
    "LogTailedReLU": ("log_tailed_relu", {"alpha": 0.2}),
    "DeterministicPass": ("deterministic_pass", {}),
    "Rect": ("rect", {"alpha": 1.5}),
}


@pytest.mark.parametrize("name", SPIKINGJELLY)
def test_spikingjellys_surrogates_step_from_zero_with_its_gradients(name: str) -> None:
    function, others = SPIKINGJELLY[name]
    for params in ({}, others):
        spike = getattr(surrogate, name)(**params)
        assert isinstance(spike, torch.nn.Module) and not spike.state_dict()
        assert isinstance(spike, surrogate.SurrogateFunctionBase)
        assert {key: getattr(spike, key) for key in params} == params
        expected = expected_factor(f"spikingjelly.{function}", **params)
        for each in (spike, copy.deepcopy(spike), pickle.loads(pickle.dumps(spike))):
            y, grad = pulled(each)
            np.testing.assert_array_equal(y, X >= 0)
            np.testing.assert_allclose(grad, expected, rtol=2e-6, atol=1e-6)
    applied = pulled(lambda x: getattr(surrogate, function).apply(x, *others.values()))
    np.testing.assert_array_equal(applied[0], X >= 0)
    np.testing.assert_allclose(applied[1], expected, rtol=2e-6, atol=1e-6)


def test_spikingjellys_functions_beside_its_classes(capsys: pytest.CaptureFixture[str]) -> None:
    g, x = torch.tensor([2.0, -1.0]), torch.tensor([0.25, -1.0])
    for name, params in (("atan", (3.0,)), ("piecewise_leaky_relu", (0.5, 0.2))):
        grad, *rest = getattr(surrogate, f"{name}_backward")(g, x, *params)
        given = dict(zip(xg.get(f"spikingjelly.{name}").params, params, strict=True))
        torch.testing.assert_close(grad, g * xg.get(f"spikingjelly.{name}").factor(x, **given))
        assert rest == [None] * len(params)
        for call in (getattr(surrogate, f"{name}_backward"), getattr(surrogate, name).apply):
            with pytest.raises(xg.RuleError):  # an argument too many is not dropped
                call(x, x, *params, 2.0, 3.0)
    surrogate.check_manual_grad(surrogate.Sigmoid.primitive_function, surrogate.sigmoid.apply, 4.0)
    assert "maximum error" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted({*SPIKINGJELLY} - {"SuperSpike", "FakeNumericalGradient"}))
def test_where_it_does_not_spike_its_function_has_the_rules_gradient(name: str) -> None:
    function, params = SPIKINGJELLY[name]
    spike = getattr(surrogate, name)(**params, spiking=False)
    words = ", ".join(f"{key}={value}" for key, value in (params | {"spiking": False}).items())
    assert spike.spiking is False and repr(spike) == f"{name}({words})"
    between = torch.linspace(-2.003, 2.01, 97, dtype=torch.float64)
    x = torch.cat([between, torch.tensor([0.0, -0.0]).double()]).requires_grad_()
    (grad,) = torch.autograd.grad(spike(x).sum(), x)
    expected = xg.get(f"spikingjelly.{function}").factor(x.detach(), **params)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-9)
    spike.set_spiking_mode(True)
    assert torch.equal(spike(x), (x >= 0).double())


def test_a_surrogate_without_a_primitive_function_only_spikes() -> None:
    for spike in (surrogate.SuperSpike(), xg.Activation("Heaviside", "fast_sigmoid")):
        with pytest.raises(xg.RuleError, match="no primitive function"):
            spike.set_spiking_mode(False)
        assert spike.spiking
    with pytest.raises(xg.RuleError, match="gives no spikes"):
        xg.Activation("ReLU", "arctan").set_spiking_mode(False)


def test_the_params_of_a_torch_activation_are_attributes() -> None:
    act = xg.Activation("Heaviside", "arctan")
    assert act.alpha == 2.0
    act.alpha += 1.0
    assert (act.alpha, dict(act.params)) == (3.0, {"alpha": 3.0})
    np.testing.assert_allclose(pulled(act)[1][2], 1.5)
    act.name_of_mine = 5
    assert act.name_of_mine == 5 and "name_of_mine" not in act.params
    assert not hasattr(xg.Activation("Heaviside"), "alpha")
    with pytest.raises(AttributeError, match="beta"):
        act.beta  # noqa: B018


def test_an_assigned_param_acts_in_a_compiled_module() -> None:
    spike = surrogate.ATan()
    compiled = torch.compile(spike, backend="aot_eager")
    assert pulled(compiled)[1][2] == 1.0
    spike.alpha = 4.0
    assert pulled(compiled)[1][2] == 2.0
    spike.set_spiking_mode(False)
    np.testing.assert_allclose(pulled(compiled)[0][2], 0.5)
    torch._dynamo.reset()


def test_counts_of_spikes_are_rounded_with_a_window_for_the_gradient() -> None:
    y, grad = pulled(surrogate.MultiLevelSpikeCount(1, grad_window=(-0.5, 0.5)))
    np.testing.assert_array_equal(y, np.round(np.clip(X, 0, 1)))
    np.testing.assert_array_equal(grad, abs(X) <= 0.5)
    for wrong in (0, True, 1.5):
        with pytest.raises((TypeError, ValueError)):
            surrogate.MultiLevelSpikeCount(wrong)


@pytest.mark.parametrize("spikes", [{"ours": "triangular"}, {3: abs}], ids=["a word", "a number"])
def test_what_is_no_method_of_norse_is_refused(spikes: Any) -> None:
    with pytest.raises(xg.RuleError, match="a name and a function"), norse.methods(spikes):
        pass
