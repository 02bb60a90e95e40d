"""The API of `spikingjelly.activation_based.surrogate`, with its names and defaults, made of our
rules.

The classes are modules with `.spiking`, `set_spiking_mode` and their params as attributes, which
may be assigned. SpikingJelly's own Triton and CuPy kernels accept only its own classes: with
`backend="torch"` ours work wherever those do.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn

from multigrad.core.rules.activation import activation
from multigrad.core.rules.registry import get
from multigrad.engine.functions.calls.parameters import bind_call

from ..modules import PRIMITIVES, Activation

Tensor: TypeAlias = torch.Tensor
STEP = "Heaviside(at_zero=1.0)"


def heaviside(x: Tensor) -> Tensor:
    """Return 1 where x >= 0, else 0, in x's dtype."""
    return (x >= 0).to(x)


class SurrogateFunctionBase(nn.Module):
    """A surrogate with a spiking and a primitive function of its own, as users write them."""

    _sg_param_names: tuple[str, ...] = ()

    def __init__(self, spiking: bool = True, **kwargs: Any) -> None:
        super().__init__()
        self.spiking = spiking
        if kwargs:  # a class of ours has the names of its rule's
            self._sg_param_names = tuple(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    @property
    def _sg_params(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._sg_param_names}

    def set_spiking_mode(self, spiking: bool) -> None:
        """Choose between the spiking function and the primitive function."""
        self.spiking = spiking

    def extra_repr(self) -> str:
        """Return the text between the parentheses of the repr."""
        params = [f"{name}={value}" for name, value in self._sg_params.items()]
        return ", ".join([*params, f"spiking={self.spiking}"])

    @staticmethod
    def spiking_function(x: Tensor, **params: Any) -> Tensor:
        """Return the spikes."""
        raise NotImplementedError

    @staticmethod
    def primitive_function(x: Tensor, **params: Any) -> Tensor:
        """Return the function whose derivative is the gradient."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return the spikes, or the primitive function."""
        function = self.spiking_function if self.spiking else self.primitive_function
        return function(x, **self._sg_params)


class Surrogate(Activation, SurrogateFunctionBase):
    """A surrogate of SpikingJelly as an activation of ours."""

    rule_name: ClassVar[str]
    arguments: ClassVar[inspect.Signature]

    def __init__(self, spiking: bool = True, **params: Any) -> None:
        Activation.__init__(self, STEP, self.rule_name, params)
        if not spiking:
            self.set_spiking_mode(False)

    def extra_repr(self) -> str:
        """Return the text between the parentheses of the repr."""
        return SurrogateFunctionBase.extra_repr(self)

    @classmethod
    def spiking_function(cls, x: Tensor, *args: Any, **params: Any) -> Tensor:
        """Return the spikes."""
        values = bind_call(cls.__name__, cls.arguments, args, params).arguments
        return activation(STEP, cls.rule_name, values)(x)

    @classmethod
    def primitive_function(cls, x: Tensor, *args: Any, **params: Any) -> Tensor:
        """Return the function whose derivative is the gradient."""
        if cls.rule_name not in PRIMITIVES:
            raise NotImplementedError(f"{cls.__name__} has no primitive function")
        return PRIMITIVES[cls.rule_name](x, *args, **params)

    @classmethod
    def backward(cls, grad_output: Tensor, x: Tensor, *args: Any) -> Tensor:
        """Return the gradient for x."""
        values = bind_call(cls.__name__, cls.arguments, args, {}).arguments
        return get(cls.rule_name)(None, grad_output, x, **values)


def surrogate(name: str, *, always_spikes: bool = False) -> type[Surrogate]:
    """Return the class of a rule; it takes the rule's params and whether it spikes."""
    rule = get(f"spikingjelly.{name}").name  # in SpikingJelly's spelling of its functions
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    defaults = get(rule).params if always_spikes else {**get(rule).params, "spiking": True}
    params = [inspect.Parameter(each, kind, default=value) for each, value in defaults.items()]
    signature = inspect.Signature(params)

    def __init__(self: Surrogate, *args: Any, **options: Any) -> None:
        # Of the class: Dynamo takes no signature from a closure.
        bound_arguments = bind_call(name, self.arguments, args, options)
        bound_arguments.apply_defaults()
        Surrogate.__init__(self, **bound_arguments.arguments)

    # So that help and IDEs show the params with their defaults.
    described = signature.replace(parameters=[inspect.Parameter("self", kind), *params])
    __init__.__signature__ = described  # type: ignore[attr-defined]
    members = {"rule_name": rule, "arguments": signature, "__init__": __init__}
    # SpikingJelly's neurons read params by these names.
    members.update(_sg_param_names=tuple(get(rule).params), __module__=__name__)
    members["__doc__"] = f"A step whose gradient is that of {rule!r}.\n\n{get(rule).__doc__}"
    return type(name, (Surrogate,), members)


PiecewiseQuadratic = surrogate("PiecewiseQuadratic")
PiecewiseExp = surrogate("PiecewiseExp")
Sigmoid = surrogate("Sigmoid")
SoftSign = surrogate("SoftSign")
SuperSpike = surrogate("SuperSpike")
ATan = surrogate("ATan")
NonzeroSignLogAbs = surrogate("NonzeroSignLogAbs")
Erf = surrogate("Erf")
PiecewiseLeakyReLU = surrogate("PiecewiseLeakyReLU")
SquarewaveFourierSeries = surrogate("SquarewaveFourierSeries")
S2NN = surrogate("S2NN")
QPseudoSpike = surrogate("QPseudoSpike")
LeakyKReLU = surrogate("LeakyKReLU")
FakeNumericalGradient = surrogate("FakeNumericalGradient", always_spikes=True)
LogTailedReLU = surrogate("LogTailedReLU")
DeterministicPass = surrogate("DeterministicPass")
Rect = surrogate("Rect")


# --- other forwards than a step -------------------------------------------------------------------


class poisson_pass(torch.autograd.Function):
    """Spikes with probability x; the gradient passes unchanged."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.bernoulli(x).float()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return grad_output


class PoissonPass(SurrogateFunctionBase):
    def __init__(self, spiking: bool = True) -> None:
        super().__init__(spiking=spiking)

    @staticmethod
    def spiking_function(x: Tensor, **params: Any) -> Tensor:
        """Return spikes drawn with probability x."""
        return poisson_pass.apply(x)

    @staticmethod
    def primitive_function(x: Tensor, **params: Any) -> Tensor:
        """Return x."""
        return x


class CountedSpikes(torch.autograd.Function):
    """The number of spikes in x, with the gradient of `spikingjelly.multi_level_spike_count`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, most: int, grad_min: float, grad_max: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.window = {"grad_min": grad_min, "grad_max": grad_max}
        return torch.round(torch.clamp(x, 0, most))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        rule = get("spikingjelly.multi_level_spike_count")
        return rule(None, grad_output, *ctx.saved_tensors, **ctx.window), None, None, None


class MultiLevelSpikeCount(SurrogateFunctionBase):
    def __init__(
        self,
        max_spike_count: int,
        spiking: bool = True,
        grad_window: tuple[float, float] | None = None,
    ) -> None:
        if not isinstance(max_spike_count, numbers.Integral) or isinstance(max_spike_count, bool):
            raise TypeError(f"max_spike_count is an integer, got {max_spike_count!r}")
        if max_spike_count < 1:
            raise ValueError(f"max_spike_count is 1 or more, got {max_spike_count!r}")
        low, high = (0.0, float(max_spike_count)) if grad_window is None else grad_window
        if low > high:
            raise ValueError(f"grad_window is (lowest, highest), got {grad_window!r}")
        params = {"max_spike_count": int(max_spike_count), "grad_min": low, "grad_max": high}
        super().__init__(spiking=spiking, **params)

    @staticmethod
    def spiking_function(x: Tensor, **params: Any) -> Tensor:
        """Return the counts."""
        count, low, high = (params[name] for name in ("max_spike_count", "grad_min", "grad_max"))
        return CountedSpikes.apply(x, count, low, high)

    @staticmethod
    def primitive_function(x: Tensor, **params: Any) -> Tensor:
        """Return x limited to the counts."""
        return torch.clamp(x, 0, params["max_spike_count"])


class SpikingjellyFunction:
    """A surrogate as SpikingJelly's functions apply it: `atan.apply(x, 2.0)`."""

    def __init__(self, surrogate: type[Surrogate]) -> None:
        self.surrogate = surrogate

    def apply(self, x: Tensor, *params: Any) -> Tensor:
        """Return the spikes."""
        return self.surrogate.spiking_function(x, *params)

    def gradients(self, grad_output: Tensor, x: Tensor, *params: Any) -> tuple[Any, ...]:
        """Return the gradient for x, and None for each param."""
        return self.surrogate.backward(grad_output, x, *params), *[None] * len(params)


piecewise_quadratic = SpikingjellyFunction(PiecewiseQuadratic)
piecewise_exp = SpikingjellyFunction(PiecewiseExp)
sigmoid = SpikingjellyFunction(Sigmoid)
soft_sign = SpikingjellyFunction(SoftSign)
super_spike = SpikingjellyFunction(SuperSpike)
atan = SpikingjellyFunction(ATan)
nonzero_sign_log_abs = SpikingjellyFunction(NonzeroSignLogAbs)
erf = SpikingjellyFunction(Erf)
piecewise_leaky_relu = SpikingjellyFunction(PiecewiseLeakyReLU)
squarewave_fourier_series = SpikingjellyFunction(SquarewaveFourierSeries)
s2nn = SpikingjellyFunction(S2NN)
q_pseudo_spike = SpikingjellyFunction(QPseudoSpike)
leaky_k_relu = SpikingjellyFunction(LeakyKReLU)
fake_numerical_gradient = SpikingjellyFunction(FakeNumericalGradient)
log_tailed_relu = SpikingjellyFunction(LogTailedReLU)
deterministic_pass = SpikingjellyFunction(DeterministicPass)
rect = SpikingjellyFunction(Rect)

piecewise_quadratic_backward = piecewise_quadratic.gradients
piecewise_exp_backward = piecewise_exp.gradients
sigmoid_backward = sigmoid.gradients
soft_sign_backward = soft_sign.gradients
super_spike_backward = super_spike.gradients
atan_backward = atan.gradients
nonzero_sign_log_abs_backward = nonzero_sign_log_abs.gradients
erf_backward = erf.gradients
piecewise_leaky_relu_backward = piecewise_leaky_relu.gradients
leaky_k_relu_backward = leaky_k_relu.gradients
fake_numerical_gradient_backward = fake_numerical_gradient.gradients
log_tailed_relu_backward = log_tailed_relu.gradients
rect_backward = rect.gradients


def check_manual_grad(
    primitive_function: Callable[..., Tensor],
    spiking_function: Callable[..., Tensor],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Print how far a surrogate is from its primitive function's own derivative."""
    x = torch.arange(-2, 2, 32 / 8192).requires_grad_()
    automatic, manual = (
        torch.autograd.grad(f(x, *args, **kwargs).sum(), x)[0]
        for f in (primitive_function, spiking_function)
    )
    error = (manual - automatic).abs()
    worst = error.argmax()
    print(f"Surrogate gradient maximum error= {error[worst]} at x= {x[worst].detach()}")
    print(f"Surrogate gradient values: auto= {automatic[worst]} manual= {manual[worst]}")
