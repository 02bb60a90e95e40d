"""`xg.quantize` of torch's modules: numbers by hand, state dicts and pickles, exports, errors."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.estimator_oracles import lsq

torch: Any = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.needs("torch")


def make(**options: Any) -> Any:
    """Give a network of quantized layers, and inputs."""
    torch.manual_seed(0)
    first = torch.nn.Conv1d(2, 4, 3)
    last = torch.nn.Linear(4 * 6, 3)
    network = torch.nn.Sequential(
        xg.quantize(first, bits=3, axis=0),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        xg.quantize(last, activations={"name": "lsq", "signed": False}, **options),
    )
    return network, torch.randn(5, 2, 8)


def test_weights_are_on_levels_and_gradients_are_the_papers() -> None:
    torch.manual_seed(0)
    layer: Any = torch.nn.Linear(4, 3, dtype=torch.float64)
    weight = layer.weight.detach().numpy().copy()
    x = torch.randn(8, 4, dtype=torch.float64)
    assert xg.quantize(layer, activations="lsq", bits=3, sample=x) is layer
    quantizer = layer.parametrizations.weight[0]
    step, inner = quantizer.step.item(), layer.input_quantizer.step.item()
    assert step == pytest.approx(2 * np.abs(weight).mean() / np.sqrt(3))
    assert inner == pytest.approx(2 * x.abs().mean().item() / np.sqrt(3))
    y = layer(x)
    y.backward(torch.ones_like(y))
    ones = np.ones((8, 3))
    rounded, _ = lsq(ones @ weight, x.numpy(), inner, bits=3)
    levels, (of_weight, of_step) = lsq(ones.T @ rounded, weight, step, bits=3)
    _, (_, of_inner) = lsq(ones @ levels, x.numpy(), inner, bits=3)
    np.testing.assert_allclose(layer.weight.detach(), levels)
    np.testing.assert_allclose(y.detach(), rounded @ levels.T + layer.bias.detach().numpy())
    np.testing.assert_allclose(layer.parametrizations.weight.original.grad, of_weight)
    assert quantizer.step.grad.item() == pytest.approx(float(of_step))
    assert layer.input_quantizer.step.grad.item() == pytest.approx(float(of_inner))


@pytest.mark.parametrize("weights", ["lsq", "lsq_plus", "fake_quantize", "dorefa", "ste_ternary"])
def test_every_estimator_trains_and_comes_back_from_a_state_dict_and_a_pickle(
    weights: str, tmp_path: Path
) -> None:
    network, x = make(weights=weights)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        loss = (network(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    y = network(x)
    other, _ = make(weights=weights)
    assert not torch.equal(other(x), y)
    other.load_state_dict(network.state_dict())
    torch.save(network, tmp_path / "network.pt")
    saved = torch.load(tmp_path / "network.pt", weights_only=False)
    for again in (other, saved, pickle.loads(pickle.dumps(saved)), copy.deepcopy(network)):
        assert torch.equal(again(x), y)
        assert list(again.state_dict()) == list(network.state_dict())  # optimizers go by the order
    saved[0].parametrizations.weight[0].step.data.mul_(2.0)
    assert torch.equal(network(x), y)


def test_a_quantized_network_is_compiled_and_exported(tmp_path: Path) -> None:
    torch._dynamo.reset()  # it leaves out code of modules that another test could not compile
    network, x = make()
    y = network(x)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), y)
    xg.export(network, tmp_path / "network.pt2", x)
    xg.load_operators(tmp_path / "network.pt2")
    loaded = torch.export.load(tmp_path / "network.pt2").module()
    loss = loaded(x).square().sum()
    loss.backward()
    network(x).square().sum().backward()
    expected = dict(network.named_parameters())
    assert len(expected) == 7
    for name, parameter in loaded.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad)


@pytest.mark.needs("onnx", "onnxscript")
def test_a_quantized_network_runs_in_onnx(tmp_path: Path) -> None:
    import onnx.reference

    network, x = make()
    torch.onnx.export(network, (x,), tmp_path / "network.onnx", dynamo=True, verbose=False)
    run: Any = onnx.reference.ReferenceEvaluator(str(tmp_path / "network.onnx"))
    found = run.run(None, {run.input_names[0]: x.numpy()})[0]
    np.testing.assert_allclose(found, network(x).detach(), atol=1e-5)


@pytest.mark.needs("jax")
def test_a_quantized_network_runs_in_another_framework() -> None:
    import jax.numpy as jnp

    network, x = make()
    apply, parameters = xg.convert(network, to="jax")
    assert parameters.keys() == dict(network.named_parameters()).keys()
    found = apply(parameters, jnp.asarray(x.numpy()))
    np.testing.assert_allclose(np.array(found), network(x).detach(), atol=1e-5)


def test_relevance_flows_by_the_quantized_weights() -> None:
    layer = torch.nn.Linear(4, 3)
    xg.quantize(layer, bits=2)
    plain = torch.nn.Linear(4, 3)
    plain.load_state_dict({"weight": layer.weight.detach(), "bias": layer.bias.detach()})
    found = []
    for each in (layer, plain):
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        network = torch.nn.Sequential(each)
        with xg.attach(network, xg.composites.epsilon_plus()):
            found.append(torch.autograd.grad(network(x).sum(), x)[0])
    torch.testing.assert_close(*found)
    assert not torch.equal(found[0], plain.weight.sum(0).expand(2, 4))


def test_a_function_of_ones_own_quantizes() -> None:
    @xg.custom_gradient
    def power_of_two(x: Any) -> Any:
        scaled = xg.xp.exp2(xg.xp.round(xg.xp.log2(abs(x))))
        return xg.xp.sign(x) * scaled, lambda upstream: upstream

    layer: Any = xg.quantize(torch.nn.Linear(4, 3), power_of_two)
    assert torch.equal(layer.weight.abs().log2().round().exp2(), layer.weight.abs())
    layer(torch.ones(4)).sum().backward()
    original = layer.parametrizations.weight.original
    assert torch.equal(original.grad, torch.ones(3, 4))


def test_what_cannot_be_quantized_is_said() -> None:
    once, quantize = xg.quantize(nn.Linear(4, 3)), vars(xg)["quantize"]
    for given, options, said in (
        (nn.Linear(4, 3), {"weights": "lqs"}, "no quantizer 'lqs' of weights; did you mean 'lsq'"),
        (nn.Linear(4, 3), {"weights": "pact"}, "no quantizer 'pact' of weights"),
        (nn.Linear(4, 3), {"weights": {"name": "lsq", "bit": 3}}, "takes no 'bit'"),
        (nn.Linear(4, 3), {"weights": 4}, "weights is the name of an estimator"),
        (nn.Linear(4, 3), {"bits": 20}, "'bits' is >= 1 and <= 16, got 20"),
        (nn.Linear(4, 3), {"bits": 1}, "'bits' is >= 2 with signed = True"),
        (nn.Linear(4, 3), {"axis": 2}, "has 2 axes, and none is axis=2"),
        (nn.ReLU(), {}, "has no weight of two axes or more"),
        (nn.LazyLinear(3), {}, "call the module once"),
        (nn.LSTM(4, 3), {}, "hands its weights to torch's kernels"),
        (once, {}, "is quantized already"),
        (nn.Sequential(nn.ReLU()), {"weights": None, "activations": "lsq"}, "a network, or a"),
        (nn.TransformerEncoderLayer(4, 1, 4), {"activations": "lsq"}, "quantize the layers within"),
        (torch.sin, {}, r"xg\.estimators\.lsq\(weight, step"),
    ):
        layer: Any = given
        with pytest.raises(xg.RuleError, match=said):
            quantize(layer, **options)


def test_a_recurrent_cell_is_quantized_in_its_loop() -> None:
    cell = xg.quantize(torch.nn.LSTMCell(4, 3), "ste_sign")
    h, c = cell(torch.ones(2, 4))
    h, c = cell(torch.ones(2, 4), (h, c))
    plain = torch.nn.LSTMCell(4, 3)
    biases = {name: value for name, value in cell.state_dict().items() if "bias" in name}
    signs = {name: getattr(cell, name).detach() for name in ("weight_ih", "weight_hh")}
    assert all(each.abs().unique().tolist() == [1.0] for each in signs.values())
    plain.load_state_dict({**biases, **signs})
    again = plain(torch.ones(2, 4), plain(torch.ones(2, 4)))
    torch.testing.assert_close(again, (h, c))


def test_inputs_by_name_are_quantized_as_those_by_position() -> None:
    layers = {
        ("input",): torch.nn.Linear(3, 2),
        ("input1", "input2"): torch.nn.Bilinear(3, 3, 2),
        ("query", "key", "value"): torch.nn.MultiheadAttention(3, 1),
    }
    x = torch.randn(4, 3)
    for names, layer in layers.items():
        quantized = xg.quantize(layer, weights=None, activations="lsq", bits=2)
        for each in (quantized, pickle.loads(pickle.dumps(quantized)), copy.deepcopy(quantized)):
            by_position = each(*[x for _ in names])
            by_name = each(**dict.fromkeys(names, x))
            for one, other in zip(by_position, by_name, strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("axis", ["x", 0.5, True, 1.0, ["x"]])
def test_an_axis_that_is_none_is_refused(axis: Any) -> None:
    layer = torch.nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"Linear\.weight: axis is an int, several or None, got"):
        xg.quantize(layer, axis=axis)


def test_weights_without_values_and_samples_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'weight' is on the meta device.*to_empty"):
        xg.quantize(torch.nn.Linear(3, 2, device="meta"))
    for sample in ("x", object(), torch.ones(3, device="meta"), [[1], [1, 2]]):
        with pytest.raises(TypeError, match="sample is an array of typical inputs, got"):
            xg.quantize(torch.nn.Linear(3, 2), activations="lsq", sample=sample)


def test_a_layer_of_no_elements_is_quantized() -> None:
    assert xg.quantize(torch.nn.Linear(0, 2))(torch.ones(4, 0)).shape == (4, 2)
