"""Functions that apply a custom gradient of a package, as its users write them."""

from __future__ import annotations

import torch
from torch import nn

Tensor = torch.Tensor


def snntorch_fast_sigmoid(x: Tensor) -> Tensor:
    """Scale and spike, the surrogate made in the function."""
    from snntorch import surrogate

    return surrogate.fast_sigmoid(slope=25)(2.0 * x)


def snntorch_atan(x: Tensor) -> Tensor:
    """Spike by a surrogate, and weigh."""
    from snntorch import surrogate

    return surrogate.atan(alpha=2.0)(x - 0.3) * x


def snntorch_leaky(x: Tensor) -> Tensor:
    """One step of a leaky neuron from rest."""
    import snntorch

    neuron = snntorch.Leaky(beta=0.9)
    spikes, membrane = neuron(x, torch.zeros_like(x))
    return spikes + membrane


def spikingjelly_atan(x: Tensor) -> Tensor:
    """Apply a surrogate module."""
    from spikingjelly.activation_based import surrogate

    return surrogate.ATan(alpha=2.0)(x)


def spikingjelly_sigmoid(x: Tensor) -> Tensor:
    """Apply a surrogate module after a shift."""
    from spikingjelly.activation_based import surrogate

    return surrogate.Sigmoid(alpha=4.0)(x - 0.5)


def spikingjelly_sequential(x: Tensor) -> Tensor:
    """Apply it among others."""
    from spikingjelly.activation_based import surrogate

    return nn.Sequential(nn.Tanh(), surrogate.ATan())(x)


def spikingjelly_if_node(x: Tensor) -> Tensor:
    """One step of an integrate-and-fire neuron."""
    from spikingjelly.activation_based import neuron

    return neuron.IFNode()(x)


def norse_threshold(x: Tensor) -> Tensor:
    """Spike by name of a method."""
    from norse.torch.functional.threshold import threshold

    return threshold(x, "super", 100.0)


def norse_lif_step(x: Tensor, v: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of a leaky neuron."""
    from norse.torch.functional.lif import LIFFeedForwardState, LIFParameters
    from norse.torch.functional.lif import lif_feed_forward_step as step

    spikes, state = step(x, LIFFeedForwardState(v, i), LIFParameters())
    return spikes, state.v, state.i


def brevitas_round_module(x: Tensor) -> Tensor:
    """Round by a module."""
    from brevitas.core.function_wrapper import RoundSte

    return RoundSte()(3.0 * x) / 3.0


def brevitas_clamp_round(x: Tensor) -> Tensor:
    """Quantize with two straight-through estimators."""
    from brevitas.function import ops_ste

    return ops_ste.scalar_clamp_ste(ops_ste.round_ste(x * 4.0), -8.0, 7.0) / 4.0


def torchao_round(x: Tensor) -> Tensor:
    """Round as torchao's fake quantizers do."""
    from torchao.quantization.qat import fake_quantizer

    return fake_quantizer._Round.apply(x * 4.0) / 4.0


def vq_rotate_to(src: Tensor, tgt: Tensor) -> Tensor:
    """Rotate as vector_quantize_pytorch does."""
    from vector_quantize_pytorch.vector_quantize_pytorch import rotate_to

    return rotate_to(src, tgt)


def fsq_round(x: Tensor) -> Tensor:
    """Round as finite scalar quantization does."""
    from vector_quantize_pytorch.finite_scalar_quantization import round_ste

    return round_ste(torch.tanh(x) * 3.0)


def timm_swish_module(x: Tensor) -> Tensor:
    """Apply timm's memory-efficient module."""
    from timm.layers.activations_me import SwishMe

    return SwishMe()(x)


def sinabs_spike(x: Tensor) -> Tensor:
    """Spike once."""
    from sinabs.activation import SingleExponential, SingleSpike

    return SingleSpike.apply(x, 1.0, SingleExponential())


def entmax_module(x: Tensor) -> Tensor:
    """Normalize by a module."""
    from entmax import Sparsemax

    return Sparsemax(dim=-1)(x)


def sparsemax_module(x: Tensor) -> Tensor:
    """Normalize by another package's module."""
    from sparsemax import Sparsemax

    return Sparsemax(dim=-1)(x)


def make_step(width: float) -> type[torch.autograd.Function]:
    """Return a class that closes over a number."""

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x > 0).float()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x.abs() < width).float()

    return Step


def factory_made(x: Tensor) -> Tensor:
    """Apply a class that a factory makes."""
    return make_step(0.7).apply(x) * x


def class_within(x: Tensor) -> Tensor:
    """Apply a class that the function makes."""

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -g

    return Reverse.apply(x) + x * x


def matern_covariance(lengthscale: Tensor) -> Tensor:
    """A kernel of points that carry no gradient."""
    from gpytorch.functions import MaternCovariance

    points = torch.linspace(-1.0, 1.0, 12).reshape(4, 3)
    return MaternCovariance.apply(points, points, lengthscale, 1.5, distance)


def rbf_covariance(lengthscale: Tensor) -> Tensor:
    """A kernel of points that carry no gradient."""
    from gpytorch.functions import RBFCovariance

    points = torch.linspace(-1.0, 1.0, 12).reshape(4, 3)
    return RBFCovariance.apply(points, points, lengthscale, squared_distance)


def distance(x1: Tensor, x2: Tensor) -> Tensor:
    """Return distances between rows."""
    return squared_distance(x1, x2).clamp_min(1e-12).sqrt()


def squared_distance(x1: Tensor, x2: Tensor) -> Tensor:
    """Return squared distances between rows."""
    return (x1.unsqueeze(-2) - x2.unsqueeze(-3)).pow(2).sum(-1)


def ibert_quantize(x: Tensor) -> Tensor:
    """Quantize as I-BERT does."""
    from transformers.models.ibert import quant_modules

    scale = quant_modules.symmetric_linear_quantization_params(8, x.min(), x.max())
    return quant_modules.SymmetricQuantFunction.apply(x, 8, False, scale) * scale


def spikingjelly_surrogates(x: Tensor) -> Tensor:
    """Add several surrogates."""
    from spikingjelly.activation_based import surrogate

    return surrogate.SoftSign()(x) + surrogate.Erf()(x - 0.2) + surrogate.S2NN()(x + 0.2)


def spikingjelly_lif_node(x: Tensor) -> Tensor:
    """Two steps of a leaky neuron, which keeps its state."""
    from spikingjelly.activation_based import neuron, surrogate

    node = neuron.LIFNode(surrogate_function=surrogate.ATan())
    return node(x) + node(2.0 * x)


def snntorch_synaptic(x: Tensor) -> Tensor:
    """One step of a neuron of second order."""
    import snntorch

    neuron = snntorch.Synaptic(alpha=0.9, beta=0.8)
    spikes, _, membrane = neuron(x, torch.zeros_like(x), torch.zeros_like(x))
    return spikes + 0.5 * membrane


def snntorch_net(x: Tensor) -> Tensor:
    """Two steps of two neurons."""
    import snntorch
    from snntorch import surrogate

    first = snntorch.Leaky(beta=0.9, spike_grad=surrogate.atan())
    second = snntorch.Leaky(beta=0.8, spike_grad=surrogate.fast_sigmoid())
    one, two = torch.zeros_like(x), torch.zeros_like(x)
    total = torch.zeros_like(x)
    for _ in range(2):
        spikes, one = first(x, one)
        spikes, two = second(spikes, two)
        total = total + spikes + two
    return total


def brevitas_weight_quantizer(x: Tensor) -> Tensor:
    """Quantize to integers of four bits at a scale of its own."""
    from brevitas.function.ops_ste import round_ste, tensor_clamp_ste

    scale = x.abs().max().detach() / 7.0
    return tensor_clamp_ste(round_ste(x / scale), -7 * torch.ones_like(x), 7 * torch.ones_like(x))


def compressai_bound(x: Tensor) -> Tensor:
    """Bound from below with a gradient that leads back."""
    from compressai.ops import LowerBound

    return LowerBound(0.1)(x)


def gradient_reversal_net(x: Tensor) -> Tensor:
    """A reversal between two maps."""
    from pytorch_revgrad import RevGrad

    return torch.tanh(nn.Sequential(nn.Tanh(), RevGrad(alpha=2.0))(x)) * x


def tabnet_sparsemax(x: Tensor) -> Tensor:
    """Normalize as TabNet does."""
    from pytorch_tabnet import sparsemax

    return sparsemax.sparsemax(x, -1)


def timm_hard_swish(x: Tensor) -> Tensor:
    """Apply timm's modules in a row."""
    from timm.layers.activations_me import HardSigmoidMe, HardSwishMe

    return nn.Sequential(HardSwishMe(), HardSigmoidMe())(x)


def norse_surrogates(x: Tensor) -> Tensor:
    """Add surrogates by their names."""
    from norse.torch.functional.threshold import threshold

    return sum(threshold(x, name, 1.5) for name in ("tanh", "triangle", "circ", "heavi_erfc"))


def checkpointed(x: Tensor) -> Tensor:
    """Run a region again in backward, a custom gradient in it."""
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda v: make_step(1.0).apply(v) * torch.tanh(v), x, use_reentrant=False)
