"""`xg.Activation` as a `torch.nn.Module`, and the primitive functions that units which do not spike
return; defined at module level so that it pickles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Never, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from multigrad.core.lowering.forwards import ActivationName
from multigrad.core.rules.activation import Activation as AnyActivation
from multigrad.core.rules.activation import activation
from multigrad.core.rules.registry import unknown_keyword_error
from multigrad.core.rules.rule import Rule
from multigrad.core.rules.rule_names import OWN
from multigrad.core.support.params import FixedParams
from multigrad.core.trace.active_rules import settle
from multigrad.errors import RuleError
from multigrad.schedule import Schedule

from .compile.checkpoint_regions import call_noted
from .core.attach.attach import tracing_state, warn_of_trace
from .core.compile.readers import ACTIVATIONS
from .core.state import is_forward_mode_enabled
from .core.versions import top_hooks

Tensor: TypeAlias = torch.Tensor
T = TypeVar("T")
COUNT = "_count"  # suffix of the name of a schedule's step in a state_dict
# Unpacked once: Dynamo guards on module globals as constants.
is_compiling, call_activation, _ = ACTIVATIONS


class Activation(nn.Module):
    """An activation whose backward is the rule in force.

    Examples:
        >>> import torch
        >>> act = xg.Activation("Heaviside")
        >>> x = torch.tensor([-2.0, 0.25], requires_grad=True)
        >>> with xg.use("triangular"):
        ...     y = act(x)
        >>> y.sum().backward()
        >>> x.grad
        tensor([0.0000, 0.7500])

    Args:
        forward: a name that `xg.activations()` lists, in any case, or a function of one tensor;
            see `xg.activation`. An `nn.Module` without parameters and buffers is such a function.
        rule: a name, a Rule or a function; wins over `use`. None: `use` decides, and outside it
            the true derivative acts (zero for the steps), or a Function's own backward.
        params: values for the rule's params.
        at_zero: for Heaviside and Sign, the value at exactly 0, by default 0.
        threshold: for Ternary, 0.05 by default.

    Attributes:
        spiking: whether forward is the named activation; see `set_spiking_mode`.

    The params of the own rule are attributes too: `act.alpha`, which may be assigned. The step of
    one that is a schedule (`xg.schedule`) is part of `state_dict()`, by the name `alpha_count`, and
    so of what `torch.distributed.checkpoint` saves and loads, on any number of processes.

    Shape: input and output `(*)`, any float dtype.

    Raises:
        RuleError: an unknown activation (also a ValueError), rule or param (also a TypeError).
    """

    spiking = True
    if TYPE_CHECKING:

        def __call__(self, x: T) -> T: ...

    def __init__(
        self,
        forward: ActivationName | Callable[..., Any] = "ReLU",
        rule: str | Rule | Callable[..., Any] | None = None,
        params: Mapping[str, object] | None = None,
        *,
        at_zero: float | None = None,
        threshold: float | None = None,
        **others: Never,
    ) -> None:
        if others:
            raise unknown_keyword_error(type(self), "Activation", rule, others)
        super().__init__()
        self._activation = activation(forward, rule, params, at_zero=at_zero, threshold=threshold)

    @property
    def rule(self) -> Any:
        """The module's own rule; assign to change it."""
        return self._activation.rule

    @rule.setter
    def rule(self, rule: Any) -> None:
        self._activation = AnyActivation(self._activation.forward, rule)

    @property
    def params(self) -> dict[str, Any]:
        """The params of the module's own rule; assign to change them."""
        return FixedParams(self._activation.params, "assign all: act.params = {**act.params, ...}")

    @params.setter
    def params(self, params: Mapping[str, Any]) -> None:
        current = self._activation
        self._activation = AnyActivation(current.forward, current.rule, params)

    def __getattr__(self, name: str) -> Any:
        # Last of all come params and counts, then what torch and its subclasses look up.
        params = self._own_params()
        if name in params:
            return params[name]
        counts = self._counts() if name.endswith(COUNT) else {}
        return counts[name] if name in counts else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_known = name in self.__dict__ or hasattr(type(self), name)
        if not is_known and name in self._own_params():
            self.params = {**self.params, name: value}
        else:
            super().__setattr__(name, value)

    def _own_params(self) -> dict[str, Any]:
        activation = self.__dict__.get("_activation")
        try:
            in_force = None if activation is None else activation.own_in_force()
        except RuleError:  # the rule is no longer registered; the next forward raises the error
            in_force = None
        return {} if in_force is None else in_force.params

    # torch writes an `_extra_state` for every module of a class that defines one. A schedule's step
    # is written only if there is a schedule, as a tensor, which every checkpoint format takes.
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, count in self._counts().items():
            destination[f"{prefix}{name}"] = count

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers; with recurse=False also the steps of schedules."""
        yield from super().named_buffers(prefix, recurse, remove_duplicate)
        # torch.distributed.checkpoint asks so for the contents of a state dict. A recursive walk,
        # such as DDP's, would broadcast the steps at each forward.
        if not recurse:
            for name, count in self._counts().items():
                yield f"{prefix}{'.' if prefix else ''}{name}", count

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: Any,
        unexpected_keys: Any,
        error_msgs: Any,
    ) -> None:
        schedules = {f"{prefix}{name}{COUNT}": each for name, each in self._schedules().items()}
        counts = {key: state_dict[key] for key in schedules if key in state_dict}
        other_entries = {key: value for key, value in state_dict.items() if key not in counts}
        super()._load_from_state_dict(
            other_entries,
            prefix,
            local_metadata,
            strict,
            missing_keys=missing_keys,
            unexpected_keys=unexpected_keys,
            error_msgs=error_msgs,
        )
        for key, schedule in schedules.items():
            if key in counts:
                schedule.load_state_dict({"count": counts[key]})
            elif strict:
                missing_keys.append(key)

    def _counts(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}{COUNT}": torch.tensor(schedule.count, device="cpu")
            for name, schedule in self._schedules().items()
        }

    def _schedules(self) -> dict[str, Schedule]:
        in_force = None if self._activation.rule is None else self._activation.own_in_force()
        if in_force is None:
            return {}
        pairs = in_force.numbers.items()
        return {name: value for name, value in pairs if isinstance(value, Schedule)}

    def set_spiking_mode(self, spiking: bool) -> None:
        """Switch between the spiking step and (False) the function whose derivative its rule is,
        with torch's derivative: the two modes of SpikingJelly's surrogates.

        Raises:
            RuleError: no such function is known for the rule.
        """
        if not spiking:
            find_primitive(self._activation)
        self.spiking = bool(spiking)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.spiking:
            primitive, params = find_primitive(self._activation)
            return primitive(x, **params)
        if is_compiling():
            return call_activation(self._activation, x)
        if top_hooks(True) is not None or not is_forward_mode_enabled():  # see `may_run_again`
            return call_noted(self._activation, x)
        return self._activation.apply(x)

    def _slow_forward(self, *args: Any, **kwargs: Any) -> Any:
        act = self._activation
        # Only torch.jit.trace enters here. A rule's call warns by itself, torch's own does not.
        if act.forward.differentiable and act.in_force() is None and tracing_state() is not None:
            warn_of_trace("the true derivative for the gradient")
        return super()._slow_forward(*args, **kwargs)

    def extra_repr(self) -> str:
        """Return the text between the parentheses of the repr."""
        act = self._activation
        words = [act.forward.words]
        if act.rule is not None:
            words.append(f"rule={getattr(act.rule, 'name', act.rule)!r}")
        shards = getattr(act.rule, "shards", None)
        words += [] if shards is None else [str(shards)]
        words += [f"{name}={value!r}" for name, value in act.params.items()]
        return ", ".join(words)


# --- primitive functions, whose derivatives are surrogate gradients -------------------------------
# The name is SpikingJelly's. Their own gradient is torch's, the true derivative; torch's functions
# `abs` and `clamp` have none where these functions do, or another in each version.


def sign(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0).to(x)


def piecewise_quadratic(x: Tensor, alpha: float) -> Tensor:
    u = torch.clamp(alpha * x, -1.0, 1.0)
    return 0.5 + u - 0.5 * u * u.abs()


def piecewise_exp(x: Tensor, alpha: float) -> Tensor:
    tail = 0.5 * torch.exp(-alpha * (x * sign(x)))
    return torch.where(x >= 0, 1.0 - tail, tail)


def sigmoid(x: Tensor, alpha: float) -> Tensor:
    return torch.sigmoid(alpha * x)


def soft_sign(x: Tensor, alpha: float) -> Tensor:
    return 0.5 * (F.softsign(alpha * x) + 1.0)


def atan(x: Tensor, alpha: float) -> Tensor:
    return torch.atan((0.5 * math.pi * alpha) * x) / math.pi + 0.5


def nonzero_sign_log(x: Tensor, alpha: float) -> Tensor:
    return sign(x) * torch.log1p(alpha * (x * sign(x)))


def erf(x: Tensor, alpha: float) -> Tensor:
    return 0.5 * torch.erfc(-alpha * x)


def piecewise_leaky_relu(x: Tensor, w: float, c: float) -> Tensor:
    clamped = torch.where(x.abs() <= w, x, w * sign(x))
    return 0.5 + clamped / (2.0 * w) + c * (x - clamped)


def squarewave_fourier(x: Tensor, n: int, period: float) -> Tensor:
    waves = torch.zeros_like(x)
    for i in range(1, n + 1):
        waves = waves + torch.sin((2 * i - 1) * (2.0 * math.pi / period) * x) / (2 * i - 1)
    return 0.5 + (2.0 / math.pi) * waves


def squarewave_fourier_series(x: Tensor, n: int, T_period: float) -> Tensor:
    return squarewave_fourier(x, n - 1, T_period)


def s2nn(x: Tensor, alpha: float, beta: float) -> Tensor:
    positive_side = beta * torch.log(torch.where(x < 0, 0.0, x) + (1.0 + 1e-5)) + 0.5
    return torch.where(x < 0, torch.sigmoid(alpha * x), positive_side)


def q_pseudo_spike(x: Tensor, alpha: float) -> Tensor:
    tail = 0.5 * (1.0 + (2.0 / (alpha - 1.0)) * (x * sign(x))) ** (1.0 - alpha)
    return torch.where(x >= 0, 1.0 - tail, tail)


def leaky_k_relu(x: Tensor, leak: float, k: float) -> Tensor:
    return torch.where(x >= 0, k * x, leak * x)


def log_tailed_relu(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > 1.0, torch.log(torch.clamp(x, min=1.0)) + 1.0, F.leaky_relu(x, alpha))


def rect(x: Tensor, alpha: float) -> Tensor:
    return torch.clamp(alpha * x + 0.5, 0.0, 1.0)


def identity(x: Tensor) -> Tensor:
    return x


# By the name of the rule that is the derivative.
PRIMITIVES: dict[str, Callable[..., Tensor]] = {
    "arctan": atan,
    "erf_surrogate": erf,
    "leaky_k_relu": leaky_k_relu,
    "log_tailed_relu": log_tailed_relu,
    "nonzero_sign_log": nonzero_sign_log,
    "piecewise_leaky_relu": piecewise_leaky_relu,
    "piecewise_quadratic": piecewise_quadratic,
    "q_pseudo_spike": q_pseudo_spike,
    "s2nn": s2nn,
    "sigmoid_surrogate": sigmoid,
    "soft_sign_surrogate": soft_sign,
    "squarewave_fourier": squarewave_fourier,
    "straight_through": identity,
    "unit_rectangular": rect,
    **{
        f"spikingjelly.{each.__name__}": each
        for each in (
            *(atan, erf, leaky_k_relu, log_tailed_relu, piecewise_exp, piecewise_leaky_relu),
            *(piecewise_quadratic, q_pseudo_spike, rect, s2nn, sigmoid, soft_sign),
            squarewave_fourier_series,
        )
    },
    "spikingjelly.deterministic_pass": identity,
    "spikingjelly.nonzero_sign_log_abs": nonzero_sign_log,
    "spikingjelly.poisson_pass": identity,
}


def find_primitive(activation: AnyActivation) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """Return the function whose derivative is an activation's own rule, and its params.

    Raises:
        RuleError: none is known.
    """
    in_force = activation.own_in_force()
    name = "" if in_force is None else in_force.specialization.rule.name
    function = None if in_force is None else in_force.specialization.rule.function
    is_library = str(getattr(function, "__module__", None)).startswith(OWN)
    if in_force is None or not is_library or name not in PRIMITIVES:
        subject = f"rule {name!r}" if name else "an activation without a rule of its own"
        raise RuleError(
            f"{subject} has no primitive function, so it only spikes; those that have one: "
            f"{', '.join(sorted(PRIMITIVES))}"
        )
    if not activation.forward.name.startswith("Heaviside"):
        raise RuleError(
            f"activation {activation.forward.name!r} gives no spikes, so it has no other mode"
        )
    params = in_force.params
    return PRIMITIVES[name], {name: settle(value) for name, value in params.items()}
