"""What `snntorch.surrogate` has, by its names and with its defaults, made of our rules.

A call returns an activation, which pickles and copies as snnTorch's closures do not. Where snnTorch
1.0.0 is wrong, so that nothing can be trained with it, ours is as it is documented: `sigmoid` is
never NaN, `LSO` works. `triangular` is snnTorch's curve, which is no triangle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from multigrad.rules.in_force.activation import Activation, activation
from multigrad.rules.registry import get

Tensor: TypeAlias = torch.Tensor
SurrogateGradient = Callable[[Tensor, Tensor, Tensor], Tensor]


def straight_through_estimator() -> Activation:
    """A step whose gradient passes unchanged."""
    return activation("Heaviside", "snntorch.straight_through_estimator")


def triangular(threshold: float = 1) -> Activation:
    """A step with snnTorch's "triangular" gradient: the threshold below zero, minus it above."""
    return activation("Heaviside", "snntorch.triangular", {"threshold": threshold})


def fast_sigmoid(slope: float = 25) -> Activation:
    """A step with the gradient 1 / (1 + slope |x|)^2."""
    return activation("Heaviside", "snntorch.fast_sigmoid", {"slope": slope})


def atan(alpha: float = 2.0) -> Activation:
    """A step with the gradient of an arctangent."""
    return activation("Heaviside", "snntorch.atan", {"alpha": alpha})


def heaviside() -> Activation:
    """A step whose gradient passes where it spikes."""
    return activation("Heaviside", "snntorch.heaviside")


def sigmoid(slope: float = 25) -> Activation:
    """A step with the gradient of a logistic sigmoid."""
    return activation("Heaviside", "snntorch.sigmoid", {"slope": slope})


def spike_rate_escape(beta: float = 1, slope: float = 25) -> Activation:
    """A step with the gradient slope exp(-beta |x - 1|)."""
    params = {"beta": beta, "slope": slope}
    return activation("Heaviside", "snntorch.spike_rate_escape", params)


def SSO(mean: float = 0, variance: float = 0.2) -> Activation:
    """A step whose gradient passes where it spikes, and is noise elsewhere."""
    return activation("Heaviside", "snntorch.SSO", {"mean": mean, "variance": variance})


def LSO(slope: float = 0.1) -> Activation:
    """A step whose gradient passes where it spikes, and is scaled elsewhere."""
    return activation("Heaviside", "snntorch.LSO", {"slope": slope})


def SFS(slope: float = 25, B: float = 1) -> Activation:
    """A step with the gradient of the fast sigmoid above B alone."""
    return activation("Heaviside", "snntorch.SFS", {"slope": slope, "B": B})


def custom_surrogate(custom_surrogate_function: SurrogateGradient) -> Activation:
    """A step whose gradient is the user's `f(input_, grad_input, spikes)`."""
    return activation("Heaviside", Custom(custom_surrogate_function).as_rule)


class Custom:
    """A user's function of snnTorch's arguments as a rule."""

    def __init__(self, function: SurrogateGradient) -> None:
        self.function = function

    def as_rule(self, ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        """Return what the user's function does."""
        return self.function(tin, grad_out, (tin > 0).to(tin.dtype))


class CustomSurrogate:
    """The class that `custom_surrogate` applies in snnTorch."""

    @staticmethod
    def apply(input_: Tensor, custom_surrogate_function: SurrogateGradient) -> Tensor:
        """Return the spikes."""
        return custom_surrogate(custom_surrogate_function)(input_)


class AppliedFunction:
    """A class of snnTorch's as its functions apply it: `FastSigmoid.apply(x, 25)`."""

    def __init__(self, rule: str, *names: str) -> None:
        self.rule = rule
        self.names = names

    def apply(self, input_: Tensor, *params: Any) -> Tensor:
        """Return the spikes."""
        given = dict(zip(self.names, params, strict=True))
        return get(self.rule).with_params(**given).under("Heaviside")(input_)


StraightThroughEstimator = AppliedFunction("snntorch.straight_through_estimator")
Triangular = AppliedFunction("snntorch.triangular", "threshold")
FastSigmoid = AppliedFunction("snntorch.fast_sigmoid", "slope")
ATan = AppliedFunction("snntorch.atan", "alpha")
Heaviside = AppliedFunction("snntorch.heaviside")
Sigmoid = AppliedFunction("snntorch.sigmoid", "slope")
SpikeRateEscape = AppliedFunction("snntorch.spike_rate_escape", "beta", "slope")
StochasticSpikeOperator = AppliedFunction("snntorch.SSO", "mean", "variance")
LeakySpikeOperator = AppliedFunction("snntorch.LSO", "slope")
SparseFastSigmoid = AppliedFunction("snntorch.SFS", "slope", "B")
