"""Our activations as `spike_grad=` of snnTorch's neurons, and its `surrogate` module made of our
rules.

Gradients equal snnTorch's own where these are right: `sigmoid` is NaN far below the threshold
there, and `LSO` raises.
"""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

import multigrad as xg

snn = pytest.importorskip("snntorch")
torch = pytest.importorskip("torch")
from snntorch import surrogate as theirs

from multigrad.compat.snntorch import surrogate as ours

from .spikes import assert_same_compiled, copies, pulled, train

pytestmark = [pytest.mark.peers, pytest.mark.needs("torch")]
EPS = torch.finfo(torch.float32).eps

SURROGATES = [
    ("straight_through_estimator", ()),
    ("triangular", ()),
    ("triangular", (0.5,)),
    ("fast_sigmoid", ()),
    ("fast_sigmoid", (10,)),
    ("atan", ()),
    ("atan", (0.5,)),
    ("heaviside", ()),
    ("sigmoid", (5,)),
    ("spike_rate_escape", ()),
    ("spike_rate_escape", (2, 10)),
    ("SFS", ()),
    ("SFS", (25, 0.25)),
]
X = torch.cat([torch.tensor([0.0, -0.0, 1.0, -1.0, 0.25, 0.5, 40.0, -40.0]), torch.randn(200)])


def assert_close(mine: Any, expected: Any, most: float = 25.0) -> None:
    """Within 4 eps of the largest value on the way, the factor's height times the gradient's."""
    bound = 4 * EPS * (expected.abs() + most * EPS)
    assert ((mine - expected).abs() <= bound.clamp(min=4 * EPS * 1e-3)).all()


@pytest.mark.parametrize(("name", "params"), SURROGATES)
def test_a_surrogate_of_ours_gives_snntorchs_spikes_and_gradients(
    name: str, params: tuple[Any, ...]
) -> None:
    x = X.clamp(-10, 10) if name == "sigmoid" else X
    expected, mine = (pulled(getattr(module, name)(*params), x) for module in (theirs, ours))
    assert torch.equal(mine[0], expected[0])
    if name == "sigmoid":  # where exp(-k x) is large, theirs loses digits first
        torch.testing.assert_close(mine[1], expected[1], rtol=1e-5, atol=1e-7)
    else:
        assert_close(mine[1], expected[1])


def test_the_names_and_defaults_are_snntorchs() -> None:
    for name, function in inspect.getmembers(theirs, inspect.isfunction):

        def described(f: Any) -> list[Any]:
            return [(p.name, p.default) for p in inspect.signature(f).parameters.values()]

        assert described(getattr(ours, name)) == described(function), name
    for name, kind in inspect.getmembers(theirs, inspect.isclass):
        if issubclass(kind, torch.autograd.Function):
            assert hasattr(getattr(ours, name), "apply"), name


def test_a_misspelled_param_is_told_with_the_function_and_the_right_one() -> None:
    from multigrad.compat.snntorch import fast_sigmoid

    with pytest.raises(TypeError, match=r"^fast_sigmoid takes no 'slop'; did you mean 'slope'"):
        fast_sigmoid(slop=3)


def test_sigmoid_is_finite_where_snntorchs_is_nan_and_lso_works() -> None:
    x = torch.tensor([-10.0, -4.0, 0.0, 4.0])
    assert pulled(theirs.sigmoid(), x)[1].isnan().any()
    assert pulled(ours.sigmoid(), x)[1].isfinite().all()
    with pytest.raises(TypeError):
        theirs.LSO()(x)
    torch.testing.assert_close(
        torch.autograd.grad(ours.LSO()(x.requires_grad_()).sum(), x)[0],
        torch.tensor([0.1, 0.1, 0.1, 1.0]),
    )


def test_sso_is_noise_below_the_threshold_and_one_above() -> None:
    x = torch.linspace(-1, 1, 4001).requires_grad_()
    for module in (theirs, ours):
        grad = torch.autograd.grad(module.SSO(mean=0.5)(x).sum(), x)[0]
        assert (grad[x > 0] == 1).all()
        noise = grad[x <= 0]
        assert noise.min() >= 0 and noise.max() < 0.2 and abs(noise.mean() - 0.1) < 0.01


def custom(input_: Any, grad_input: Any, spikes: Any) -> Any:
    return grad_input / (10 * torch.abs(input_) + 1.0) ** 2 + 0.1 * spikes


def test_a_custom_surrogate_is_called_as_snntorch_calls_it() -> None:
    expected, mine = (pulled(module.custom_surrogate(custom), X) for module in (theirs, ours))
    assert torch.equal(mine[0], expected[0])
    assert_close(mine[1], expected[1])
    pickle.loads(pickle.dumps(ours.custom_surrogate(custom)))


class Net(torch.nn.Module):
    """Two layers of leaky neurons, as in snnTorch's tutorials."""

    def __init__(self, spike_grad: Any) -> None:
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(12, 16), torch.nn.Linear(16, 4)
        self.lif1 = snn.Leaky(beta=0.9, spike_grad=spike_grad)
        self.lif2 = snn.Leaky(beta=0.9, spike_grad=spike_grad)

    def forward(self, x: Any, steps: int = 6) -> Any:
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        out = []
        for _ in range(steps):
            spikes, mem1 = self.lif1(self.fc1(x), mem1)
            spikes, mem2 = self.lif2(self.fc2(spikes), mem2)
            out.append(spikes + 0.1 * mem2)
        return torch.stack(out)


def trained(spike_grad: Any) -> tuple[list[float], Net]:
    torch.manual_seed(0)
    net, x = Net(spike_grad), torch.randn(8, 12) * 2
    return train(net, 0.01, lambda: (net(x).mean(0) - 0.5).square().mean()), net


def made(kind: str) -> Any:
    return {
        "compat": ours.fast_sigmoid,
        "activation": lambda: xg.activation("Heaviside", "snntorch.fast_sigmoid"),
        "module": lambda: xg.Activation("Heaviside", "snntorch.fast_sigmoid"),
        "plain": lambda: xg.Activation("Heaviside", "fast_sigmoid", {"slope": 25}),
    }[kind]()


@pytest.mark.parametrize("kind", ["compat", "activation", "module", "plain"])
def test_a_network_trains_as_with_snntorchs_own(kind: str) -> None:
    expected, their_net = trained(theirs.fast_sigmoid(slope=25))
    losses, net = trained(made(kind))
    assert losses[-1] < losses[0]
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
    assert list(net.state_dict()) == list(their_net.state_dict())
    x = torch.randn(3, 12)
    with torch.no_grad():
        net(x)  # the neurons keep their last membranes, which copy only without a graph
        their_net(x)
    for other in copies(net):
        assert torch.equal(other(x), net(x))
    fresh = Net(made(kind))
    fresh.load_state_dict(their_net.state_dict())
    torch.testing.assert_close(fresh(x), their_net(x))


@pytest.mark.parametrize("kind", ["compat", "module"])
def test_a_compiled_network_has_the_same_gradients(kind: str) -> None:
    torch.manual_seed(0)
    net, x = Net(made(kind)), torch.randn(8, 12) * 2
    assert_same_compiled(net, (x, 2), list(net.parameters()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_membranes_and_gradients_are_snntorchs(dtype: Any) -> None:
    def autocast(function: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=dtype):
            return function(x)

    grads = []
    for module in (theirs, ours):
        torch.manual_seed(0)
        net, x = Net(module.fast_sigmoid()), torch.randn(8, 12) * 2
        out = autocast(net, x)
        assert out.dtype == torch.float32
        grads.append(torch.autograd.grad(out.square().sum(), list(net.parameters())))
    assert all(map(torch.equal, *grads))

    def made_inside(x: Any) -> Any:
        return ours.FastSigmoid.apply(x, 25)

    compiled = torch.compile(made_inside, backend="aot_eager", fullgraph=True)
    assert autocast(compiled, x.to(dtype)).dtype == torch.float32


NEURONS = {
    "Leaky": lambda **o: snn.Leaky(beta=0.9, **o),
    "Synaptic": lambda **o: snn.Synaptic(alpha=0.8, beta=0.9, **o),
    "Alpha": lambda **o: snn.Alpha(alpha=0.9, beta=0.8, **o),
    "Lapicque": lambda **o: snn.Lapicque(beta=0.9, **o),
    "RLeaky": lambda **o: snn.RLeaky(beta=0.9, all_to_all=False, **o),
    "RSynaptic": lambda **o: snn.RSynaptic(alpha=0.8, beta=0.9, all_to_all=False, **o),
    "LeakyParallel": lambda **o: snn.LeakyParallel(input_size=6, hidden_size=6, **o),
    "SLSTM": lambda **o: snn.SLSTM(6, 6, **o),
}


@pytest.mark.parametrize("name", NEURONS)
def test_each_neuron_takes_it(name: str) -> None:
    grads = []
    for spike_grad in (theirs.atan(), xg.Activation("Heaviside", "snntorch.atan")):
        torch.manual_seed(1)
        parallel = name == "LeakyParallel"
        options = {} if parallel else {"init_hidden": True}
        neuron = NEURONS[name](spike_grad=spike_grad, **options)
        x = (torch.randn(4, 3, 6) * 2).requires_grad_()
        out = neuron(x) if parallel else torch.stack([neuron(step) for step in x])
        grads.append((out.detach(), *torch.autograd.grad(out.sum(), x)))
    for mine, expected in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
