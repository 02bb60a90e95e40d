"""Our activations as `surrogate_function=` of SpikingJelly's neurons, and its `surrogate` module
made of our rules.

Gradients equal SpikingJelly's own where these are right: at -0.0 `FakeNumericalGradient` is -inf
there.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import multigrad as xg

pytest.importorskip("spikingjelly")
torch = pytest.importorskip("torch")
from spikingjelly.activation_based import functional, layer, neuron
from spikingjelly.activation_based import surrogate as theirs

from multigrad.compat.spikingjelly import surrogate as ours

from .spikes import assert_same_compiled, copies, pulled, train

pytestmark = [pytest.mark.peers, pytest.mark.needs("torch")]

CLASSES = {
    "PiecewiseQuadratic": {"alpha": 1.5},
    "PiecewiseExp": {"alpha": 1.5},
    "Sigmoid": {"alpha": 2.0},
    "SoftSign": {"alpha": 3.0},
    "SuperSpike": {"alpha": 1.5},
    "ATan": {"alpha": 1.5},
    "NonzeroSignLogAbs": {"alpha": 1.5},
    "Erf": {"alpha": 1.5},
    "PiecewiseLeakyReLU": {"w": 0.5, "c": 0.1},
    "SquarewaveFourierSeries": {"n": 4, "T_period": 4.0},
    "S2NN": {"alpha": 2.0, "beta": 2.0},
    "QPseudoSpike": {"alpha": 3.0},
    "LeakyKReLU": {"leak": 0.2, "k": 2.0},
    "FakeNumericalGradient": {"alpha": 2.0},
    "LogTailedReLU": {"alpha": 0.2},
    "DeterministicPass": {},
    "Rect": {"alpha": 2.0},
}
WITHOUT_PRIMITIVE = {"SuperSpike", "FakeNumericalGradient"}
EDGES = torch.tensor([0.0, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0, 2 / 3, 8.0, -8.0])
X = torch.cat([EDGES, torch.linspace(-3, 3, 200)])


@pytest.mark.parametrize("name", CLASSES)
def test_a_surrogate_of_ours_gives_spikingjellys_numbers_in_both_modes(name: str) -> None:
    for params in ({}, CLASSES[name]):
        expected, mine = (getattr(module, name)(**params) for module in (theirs, ours))
        assert torch.equal(pulled(mine, X)[0], pulled(expected, X)[0])
        # Their cosine is taken of angles up to 88, whose rounding is its error.
        atol = 1e-5 if name == "SquarewaveFourierSeries" else 1e-6
        given, wanted = pulled(mine, X)[1], pulled(expected, X)[1]
        torch.testing.assert_close(given, wanted, rtol=2e-6, atol=atol)
        assert str(mine) == str(expected).replace("=8,", "=8.0,")
        for key in params:
            assert getattr(mine, key) == getattr(expected, key)
        if name in WITHOUT_PRIMITIVE:
            continue
        away = X[X.abs() > 1e-3]
        for each in (mine, expected):
            each.set_spiking_mode(False)
            assert each.spiking is False
        torch.testing.assert_close(mine(away), expected(away), rtol=2e-6, atol=2e-5)
        given, wanted = pulled(mine, X)[1], pulled(expected, X)[1]
        torch.testing.assert_close(given, wanted, rtol=2e-5, atol=1e-5)
        mine.set_spiking_mode(True)
        assert torch.equal(pulled(mine, X)[0], (X >= 0).float())


def test_the_names_signatures_and_defaults_are_spikingjellys() -> None:
    for name, kind in inspect.getmembers(theirs, inspect.isclass):
        if kind.__module__ != theirs.__name__:
            continue
        own = getattr(ours, name)
        if issubclass(kind, torch.autograd.Function):
            assert hasattr(own, "apply"), name
            continue
        of = [
            [(p.name, p.default) for p in inspect.signature(each).parameters.values()]
            for each in (own, kind)
        ]
        assert of[0] == of[1], name
    g, x = torch.randn(5), torch.randn(5)
    for name, function in inspect.getmembers(theirs, inspect.isfunction):
        if name.endswith("_backward"):
            params = [1.5] * (len(inspect.signature(function).parameters) - 2)
            expected, given = function(g, x, *params), getattr(ours, name)(g, x, *params)
            torch.testing.assert_close(given[0], expected[0])
            assert given[1:] == expected[1:]
        elif name != "plot_surrogate_function":
            assert hasattr(ours, name), name


def test_counts_and_random_spikes_are_as_there() -> None:
    x = torch.linspace(-1, 5, 61)
    for options in ({}, {"grad_window": (-0.5, 2.0)}):
        expected, mine = (m.MultiLevelSpikeCount(3, **options) for m in (theirs, ours))
        for given, wanted in zip(pulled(mine, x), pulled(expected, x), strict=True):
            assert torch.equal(given, wanted)
    p = torch.rand(100)
    both = []
    for module in (theirs, ours):
        torch.manual_seed(0)
        both.append(pulled(module.PoissonPass(), p))
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


class Own(ours.SurrogateFunctionBase):
    """A user's own surrogate, written as for SpikingJelly."""

    def __init__(self, alpha: float = 1.0, spiking: bool = True) -> None:
        super().__init__(spiking, alpha=alpha)

    @staticmethod
    def spiking_function(x: Any, alpha: float) -> Any:
        return ours.atan.apply(x, alpha)

    @staticmethod
    def primitive_function(x: Any, alpha: float) -> Any:
        return torch.sigmoid(alpha * x)


def test_a_users_own_subclass_works() -> None:
    expected = pulled(theirs.ATan(alpha=3.0), X)
    given = pulled(Own(3.0), X)
    assert torch.equal(given[0], expected[0])
    torch.testing.assert_close(given[1], expected[1], rtol=2e-6, atol=1e-6)
    assert torch.equal(Own(3.0, spiking=False)(X), torch.sigmoid(3.0 * X))


# --- in its neurons -------------------------------------------------------------------------------

NEURONS = {
    "IFNode": neuron.IFNode,
    "LIFNode": neuron.LIFNode,
    "ParametricLIFNode": neuron.ParametricLIFNode,
    "QIFNode": neuron.QIFNode,
    "EIFNode": neuron.EIFNode,
    "IzhikevichNode": neuron.IzhikevichNode,
    "KLIFNode": neuron.KLIFNode,
    "ComplementaryLIFNode": neuron.ComplementaryLIFNode,
}


def made(kind: str) -> Any:
    if kind == "compat":
        return ours.ATan()
    if kind == "function":
        return xg.activation("Heaviside", "spikingjelly.ATan", at_zero=1.0)
    return xg.Activation("Heaviside", "spikingjelly.ATan", at_zero=1.0)


def stepped(kind: Any, spike: Any, mode: str) -> tuple[Any, ...]:
    torch.manual_seed(1)
    node = kind(surrogate_function=spike, step_mode=mode)
    x = (torch.rand(5, 3, 6) * 3).requires_grad_()
    out = node(x) if mode == "m" else torch.stack([node(step) for step in x])
    parameters = list(node.parameters())
    return (out.detach(), *torch.autograd.grad(out.square().sum(), [x, *parameters]))


@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize("name", NEURONS)
def test_each_neuron_takes_it_in_single_and_multi_step(name: str, mode: str) -> None:
    expected = stepped(NEURONS[name], theirs.ATan(), mode)
    for kind in ("compat", "module", "function"):
        if kind == "function" and name == "ComplementaryLIFNode":
            continue
        for given, wanted in zip(stepped(NEURONS[name], made(kind), mode), expected, strict=True):
            torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-6)


def test_a_network_is_smooth_in_the_other_mode_and_spikes_again() -> None:
    node, reference = (
        neuron.LIFNode(surrogate_function=each.Sigmoid(), step_mode="m") for each in (ours, theirs)
    )
    x = torch.rand(4, 2, 3) * 2
    smooth = []
    for each in (node, reference):
        each.surrogate_function.set_spiking_mode(False)
        smooth.append(each(x))
        each.reset()
        each.surrogate_function.set_spiking_mode(True)
    torch.testing.assert_close(*smooth)
    assert torch.equal(node(x), reference(x))


def network(module: Any) -> Any:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        layer.Linear(8, 12),
        neuron.LIFNode(surrogate_function=module.ATan(), detach_reset=True),
        layer.Linear(12, 3),
        neuron.LIFNode(surrogate_function=module.Sigmoid(alpha=2.0), detach_reset=True),
    )
    functional.set_step_mode(net, "m")
    return net


def begin(net: Any, x: Any) -> Any:
    """Call the network at rest."""
    functional.reset_net(net)
    return net(x)


def test_a_network_trains_as_with_spikingjellys_own_and_copies() -> None:
    expected, net = network(theirs), network(ours)
    x = torch.rand(6, 4, 8) * 3
    losses = [
        train(each, 0.1, lambda each=each: (begin(each, x).mean(0) - 0.5).square().mean())
        for each in (net, expected)
    ]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    assert list(net.state_dict()) == list(expected.state_dict())
    functional.reset_net(net)
    for other in copies(net):
        assert torch.equal(other(x), begin(net, x))


def test_a_compiled_network_has_the_same_gradients() -> None:
    net, x = network(ours), torch.rand(6, 4, 8) * 3
    assert_same_compiled(lambda x: begin(net, x), (x,), list(net.parameters()))
