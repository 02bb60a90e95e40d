"""`Rule.factor` as `surrogate_grad_fn=` of sinabs's layers, and rules with its names."""

from __future__ import annotations

from typing import Any

import pytest

import multigrad as xg

sinabs = pytest.importorskip("sinabs")
torch = pytest.importorskip("torch")
import sinabs.activation as theirs
import sinabs.layers as sl

from .spikes import copies, train

pytestmark = [pytest.mark.peers, pytest.mark.needs("torch")]

SURROGATES = [
    ("Heaviside", {}),
    ("Heaviside", {"window": 0.25}),
    ("Gaussian", {}),
    ("Gaussian", {"mu": 0.5, "sigma": 1.5, "grad_scale": 2.0}),
    ("MultiGaussian", {}),
    ("MultiGaussian", {"sigma": 1.5, "h": 0.3, "s": 3.0, "grad_scale": 2.0}),
    ("SingleExponential", {}),
    ("SingleExponential", {"grad_width": 1.5, "grad_scale": 2.0}),
    ("PeriodicExponential", {}),
    ("PeriodicExponential", {"grad_width": 1.5, "grad_scale": 2.0}),
]
V = torch.cat([torch.tensor([0.0, -0.0, 1.0, 2.0, -1.0, 0.5]), torch.linspace(-2, 4, 101)])


@pytest.mark.parametrize(("name", "params"), SURROGATES)
@pytest.mark.parametrize("threshold", [1.0, 2.0, torch.tensor(2.0)])
def test_a_factor_is_that_of_sinabs(name: str, params: dict[str, float], threshold: Any) -> None:
    expected = getattr(theirs, name)(**params)(V, threshold)
    given = xg.get(f"sinabs.{name}").with_params(**params).factor(V, threshold)
    torch.testing.assert_close(given, expected.to(V.dtype), rtol=4e-6, atol=1e-6)


LAYERS = {
    "LIF": lambda **o: sl.LIF(tau_mem=20.0, **o),
    "IAF": lambda **o: sl.IAF(**o),
    "ALIF": lambda **o: sl.ALIF(tau_mem=20.0, tau_adapt=10.0, **o),
    "LIFRecurrent": lambda **o: sl.LIFRecurrent(
        tau_mem=20.0, rec_connect=torch.nn.Linear(5, 5, bias=False), **o
    ),
}


def run(make: Any, surrogate: Any, spike_fn: Any) -> tuple[Any, ...]:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(
        torch.nn.Linear(4, 5), make(surrogate_grad_fn=surrogate, spike_fn=spike_fn)
    )
    x = torch.rand(2, 10, 4) * 8
    out = layer(x)
    learned = [each for each in layer.parameters() if each.requires_grad]
    return out.detach(), torch.autograd.grad(out.square().sum(), learned), layer


@pytest.mark.parametrize("spike_fn", [theirs.SingleSpike, theirs.MultiSpike])
@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_takes_it(name: str, spike_fn: Any) -> None:
    expected = run(LAYERS[name], theirs.Gaussian(), spike_fn)
    given = run(LAYERS[name], xg.get("sinabs.Gaussian").factor, spike_fn)
    torch.testing.assert_close(given[:2], expected[:2], rtol=1e-5, atol=1e-6)


def test_a_layer_with_it_is_copied_and_trains() -> None:
    def trained(surrogate: Any) -> tuple[list[float], Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(4, 6), sl.LIF(tau_mem=20.0, surrogate_grad_fn=surrogate)
        )
        x = torch.rand(2, 10, 4) * 8

        def loss() -> Any:
            net[1].reset_states()
            return (net(x).mean(1) - 0.3).square().mean()

        return train(net, 0.01, loss), net

    expected, _ = trained(theirs.SingleExponential())
    losses, net = trained(xg.get("sinabs.SingleExponential").factor)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
    x = torch.rand(2, 10, 4) * 8
    net[1].reset_states()
    for other in copies(net):
        net[1].reset_states()
        assert torch.equal(other(x), net(x))
