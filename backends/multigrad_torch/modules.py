"""`xg.Activation` as a `torch.nn.Module`; defined at module level so that it pickles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from multigrad.errors import RuleError
from multigrad.graph.support.params import FixedParams
from multigrad.lowering.names import ActivationName
from multigrad.rules.activation import Activation as AnyActivation
from multigrad.rules.model.lookup import refuse_misplaced
from multigrad.rules.model.rule import Rule
from multigrad.rules.schedule import Schedule

from .attach.attach import tracing_state, warn_of_trace
from .compat.primitives import find_primitive
from .compile.checkpoint_regions import call_noted, is_forward_mode_enabled, top_hooks
from .compile.compile import ACTIVATIONS

if TYPE_CHECKING:
    from typing_extensions import Never

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
            raise refuse_misplaced(type(self), "Activation", rule, others)
        super().__init__()
        self._activation = AnyActivation(forward, rule, params, at_zero, threshold)

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
            own = None if activation is None else activation.own_in_force()
        except RuleError:  # the rule is no longer registered; the next forward raises the error
            own = None
        return {} if own is None else own.params

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
        schedules = {f"{prefix}{n}{COUNT}": each for n, each in self._schedules().items()}
        own = {key: state_dict[key] for key in schedules if key in state_dict}
        others = {key: value for key, value in state_dict.items() if key not in own}
        super()._load_from_state_dict(
            others,
            prefix,
            local_metadata,
            strict,
            missing_keys=missing_keys,
            unexpected_keys=unexpected_keys,
            error_msgs=error_msgs,
        )
        for key, schedule in schedules.items():
            if key in own:
                schedule.load_state_dict({"count": own[key]})
            elif strict:
                missing_keys.append(key)

    def _counts(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}{COUNT}": torch.tensor(schedule.count, device="cpu")
            for name, schedule in self._schedules().items()
        }

    def _schedules(self) -> dict[str, Schedule]:
        own = None if self._activation.rule is None else self._activation.own_in_force()
        if own is None:
            return {}
        pairs = zip(own.specialization.runtime, own.values, strict=True)
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
        # Only torch.jit.trace enters here. A rule's call warns by itself, torch's own function does
        # not.
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
