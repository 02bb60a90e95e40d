"""The API of `snntorch.surrogate`, with its names and defaults, made of our rules.

A call returns an activation, which can be pickled and copied, unlike snnTorch's closures. Where
snnTorch 1.0.0 is wrong, so that nothing can be trained, ours does what its documentation says:
`sigmoid` is never NaN, `LSO` works. `triangular` is snnTorch's curve, which is not a triangle.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from multigrad.core.rules.activation import Activation, activation
from multigrad.core.rules.registry import get
from multigrad.engine.functions.calls.parameters import bind_call
from multigrad.errors import RuleTypeError

Tensor: TypeAlias = torch.Tensor
SurrogateGradient = Callable[[Tensor, Tensor, Tensor], Tensor]


class Step(Activation):
    """A step with float32 spikes under autocast, as in snnTorch, so that membranes stay float32."""

    __slots__ = ()

    def __call__(self, x: Any, **params: Any) -> Any:
        return super().__call__(in_float32_under_autocast(x), **params)


def in_float32_under_autocast(x: Any) -> Any:
    is_half = isinstance(x, Tensor) and x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if is_half and torch.is_autocast_enabled(x.device.type) else x


def make_step(rule: Any, params: dict[str, Any] | None = None) -> Any:
    if not torch.compiler.is_compiling():
        return Step("Heaviside", rule, params)
    step = activation("Heaviside", rule, params)  # the only one that compiled code can make
    return lambda x, **others: step(in_float32_under_autocast(x), **others)


def surrogate_factory(rule: str) -> Callable[..., Activation]:
    """Return snnTorch's function of this name: params in, an activation out."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    params = get(rule).params
    signature = inspect.Signature(
        [inspect.Parameter(name, kind, default=default) for name, default in params.items()]
    )

    def make(*args: Any, **options: Any) -> Activation:
        if args and isinstance(args[0], Tensor) and args[0].ndim:
            raise RuleTypeError(
                f"{make.__name__} takes params and returns a function of the membrane: write "
                f"surrogate.{make.__name__}(), also as spike_grad="
            )
        bound_arguments = bind_call(make.__name__, signature, args, options)
        bound_arguments.apply_defaults()
        return make_step(rule, bound_arguments.arguments)

    make.__name__ = make.__qualname__ = rule.rpartition(".")[2]
    make.__doc__ = f"A step whose gradient is that of {rule!r}.\n\n{get(rule).__doc__}"
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


straight_through_estimator = surrogate_factory("snntorch.straight_through_estimator")
triangular = surrogate_factory("snntorch.triangular")
fast_sigmoid = surrogate_factory("snntorch.fast_sigmoid")
atan = surrogate_factory("snntorch.atan")
heaviside = surrogate_factory("snntorch.heaviside")
sigmoid = surrogate_factory("snntorch.sigmoid")
spike_rate_escape = surrogate_factory("snntorch.spike_rate_escape")
SSO = surrogate_factory("snntorch.SSO")
LSO = surrogate_factory("snntorch.LSO")
SFS = surrogate_factory("snntorch.SFS")


def custom_surrogate(custom_surrogate_function: SurrogateGradient) -> Activation:
    """Return a step whose gradient is the user's `f(input_, grad_input, spikes)`."""
    if not callable(custom_surrogate_function):
        raise RuleTypeError(
            "custom_surrogate takes a function f(input_, grad_input, spikes), got "
            f"{custom_surrogate_function!r:.60}"
        )
    return make_step(partial(run_custom, custom_surrogate_function))


def run_custom(function: SurrogateGradient, ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    return function(tin, grad_out, (tin > 0).to(tin.dtype))


class AppliedFunction:
    """A stand-in for one of snnTorch's `autograd.Function` classes: `FastSigmoid.apply(x, 25)`."""

    def __init__(self, make: Callable[..., Activation]) -> None:
        self.make = make

    def apply(self, input_: Tensor, *args: Any, **options: Any) -> Tensor:
        """Return the spikes; params that are left out have the defaults of the function."""
        return self.make(*args, **options)(input_)

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise RuleTypeError(
            f"snnTorch's class is not called: write {self.make.__name__}() for a spike_grad=, or "
            "its .apply(x, ...)"
        )


StraightThroughEstimator = AppliedFunction(straight_through_estimator)
Triangular = AppliedFunction(triangular)
FastSigmoid = AppliedFunction(fast_sigmoid)
ATan = AppliedFunction(atan)
Heaviside = AppliedFunction(heaviside)
Sigmoid = AppliedFunction(sigmoid)
SpikeRateEscape = AppliedFunction(spike_rate_escape)
StochasticSpikeOperator = AppliedFunction(SSO)
LeakySpikeOperator = AppliedFunction(LSO)
SparseFastSigmoid = AppliedFunction(SFS)
CustomSurrogate = AppliedFunction(custom_surrogate)
