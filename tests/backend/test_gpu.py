"""On a GPU, where there is one: the same numbers as on the CPU, and nothing moves between devices
by itself.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch: Any = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.needs("torch")]
xp = xg.xp
X = np.linspace(-3, 3, 4096, dtype=np.float32).reshape(64, 64)
G = np.cos(np.arange(4096, dtype=np.float32)).reshape(64, 64)
EXACT = (
    "d(ReLU)",
    "rectangular",
    "triangular",
    "scale",
    "gradient_reversal",
    "clipped_straight_through",
)


@pytest.fixture
def gpu() -> Any:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU that torch sees")
    return torch.device("cuda")


def pull(f: Any, device: Any, *arrays: Any, **use: Any) -> tuple[Any, list[Any]]:
    """Outputs and gradients, as arrays, with the tensors on a device."""
    tensors = [torch.tensor(x, device=device, requires_grad=x.dtype.kind == "f") for x in arrays]
    y = f(*tensors)
    y.backward(torch.tensor(G, device=device))
    assert y.device.type == device.type
    assert all(x.grad is None or x.grad.device.type == device.type for x in tensors)
    return y.detach().cpu().numpy(), [
        None if x.grad is None else x.grad.cpu().numpy() for x in tensors
    ]


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("forward", ["Heaviside", "ReLU", "Linear"])
def test_rules_give_the_bits_of_the_cpu(gpu: Any, rule: str, forward: str) -> None:
    act = xg.activation(forward, rule=rule)
    y, (gradient,) = pull(act, gpu, X)
    expected, (on_cpu,) = pull(act, torch.device("cpu"), X)
    assert np.array_equal(y, expected)
    assert np.array_equal(gradient, on_cpu)


@pytest.mark.parametrize(
    "rule", ["arctan", "fast_sigmoid", "sigmoid_surrogate", "clip_norm", "centralize"]
)
def test_rules_with_functions_and_reductions_are_within_the_design(gpu: Any, rule: str) -> None:
    _, (gradient,) = pull(xg.activation("Tanh", rule=rule), gpu, X)
    expected = xg.get(rule)(None, G.astype(np.float64), X.astype(np.float64))
    assert np.all(
        np.abs(gradient - expected) <= 4 * np.finfo(np.float32).eps * np.max(np.abs(expected)) * 4
    )


def test_draws_under_a_key_are_those_of_the_cpu(gpu: Any) -> None:
    for rule in ("full_jam", "positive_jam"):
        found = []
        for device in (gpu, torch.device("cpu")):
            with xg.use(rule, key=7):
                found.append(pull(xg.activation("Linear"), device, X)[1][0])
        assert np.array_equal(*found)


def test_a_function_of_two_tensors_runs_on_the_gpu(gpu: Any) -> None:
    function = xg.function(
        lambda x, w, limit: xp.clip(x * w, -limit, limit),
        lambda grad_out, x, w, limit: (grad_out * w * (xp.abs(x * w) < limit), grad_out * x, None),
    )

    y, gradients = pull(lambda x, w: function(x, w, 2.0), gpu, X, X + 1)
    expected, on_cpu = pull(lambda x, w: function(x, w, 2.0), torch.device("cpu"), X, X + 1)
    assert np.array_equal(y, expected)
    assert all(np.array_equal(a, b) for a, b in zip(gradients, on_cpu, strict=True))


def test_a_class_runs_on_the_gpu_with_its_own_bits(gpu: Any) -> None:
    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, low: float, high: float) -> Any:
            ctx.save_for_backward(x)
            ctx.limits = low, high
            return x.clamp(low, high)

        @staticmethod
        def backward(ctx: Any, *grad_outs: Any) -> Any:
            (x,) = ctx.saved_tensors
            low, high = ctx.limits
            return grad_outs[0] * (x.ge(low) * x.le(high)), None, None

    ours = xg.from_autograd_function(Clamp)
    y, (gradient,) = pull(lambda x: ours(x, -1.0, 1.0), gpu, X)
    expected, (own,) = pull(lambda x: Clamp.apply(x, -1.0, 1.0), gpu, X)
    assert np.array_equal(y, expected)
    assert np.array_equal(gradient, own)


def test_tensors_on_two_devices_are_named(gpu: Any) -> None:
    function = xg.function(lambda x, w: x * w)
    with pytest.raises(xg.MultigradError, match=r"'x' on cuda.*'w' on cpu.*move one of them"):
        function(torch.ones(3, device=gpu), torch.ones(3))


@pytest.mark.parametrize("fused", [False, True])
def test_no_rule_waits_for_the_gpu(gpu: Any, fused: bool) -> None:
    x, grad = (torch.tensor(each, device=gpu) for each in (X, G))
    waits = []
    for rule in xg.rules():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of rules that have no kernel
            act = xg.activation("Tanh", xg.get(rule).copy(name=f"{rule} waits"), fused=fused)
            for mode in ("default", "error"):
                own = x.clone().requires_grad_()
                torch.cuda.set_sync_debug_mode(mode)
                try:
                    act(own).backward(grad)
                except RuntimeError as error:
                    waits.append((rule, str(error)))
                finally:
                    torch.cuda.set_sync_debug_mode("default")
    assert not waits


def test_gradients_of_many_parameters_are_clipped_without_waiting(gpu: Any) -> None:
    gradients = [torch.tensor(X[: i + 1], device=gpu) for i in range(40)]
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            clipped = xg.apply_to_gradients(gradients, "clip_norm", {"max_norm": 1.0})
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for each, given in zip(clipped, gradients, strict=True):
        expected = given / given.norm()
        assert float((each - expected).abs().max()) < 1e-6
