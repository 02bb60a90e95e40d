"""Quantization of a module's weights and inputs, by torch's parametrizations.

torch does not pickle parametrized modules, as each has a class of its own. A pickle of a quantized
module contains the module without parametrizations, and its quantizers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from multigrad.errors import RuleTypeError, RuleValueError
from multigrad.estimators.quantizers import (
    STANDARD,
    Quantization,
    Seen,
    axes_of,
    look_at,
    read_quantization,
)
from multigrad.models.attach import CHANGING

from .swapped_classes import unchanged_on_failure

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
INPUTS = "input_quantizer"  # the name of the submodule that quantizes a layer's inputs


class Quantizer(nn.Module):
    """A module that quantizes a tensor; its parameters, which it learns, start from statistics of
    the tensor, on the device of `like` and in its dtype, at least float32.
    """

    holds_weights = True  # tells a capture to look for its parameters

    def __init__(self, how: Quantization, seen: Seen, like: torch.Tensor | None = None) -> None:
        super().__init__()
        self.how = how
        dtype, device = torch.float32, None
        if like is not None:
            dtype, device = torch.promote_types(like.dtype, dtype), like.device
        for name, start in zip(how.learned, how.start(seen), strict=True):
            value = torch.tensor(start, dtype=dtype, device=device)
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(x, *[getattr(self, name) for name in self.how.learned])

    def extra_repr(self) -> str:
        return self.how.words


def quantize_module(
    module: nn.Module,
    weights: Any,
    activations: Any,
    *,
    bits: int,
    axis: int | tuple[int, ...] | None,
    sample: Any,
) -> nn.Module:
    label = type(module).__name__.removeprefix("Parametrized")
    with claimed(module, label):
        plan, inputs = [], None
        if weights is not None:
            how = read_quantization(label, "weights", weights, bits)
            plan = plan_weights(module, label, how, axis)
        if activations is not None:
            how = read_quantization(label, "activations", activations, bits)
            inputs = plan_inputs(module, label, how, sample)
        with unchanged_on_failure(module):  # torch tries each quantizer on its weight
            for owner, name, quantizer in plan:
                put_on_weight(owner, name, quantizer)
            if inputs is not None:
                module.add_module(INPUTS, inputs)
                module.register_forward_pre_hook(quantize_input, with_kwargs=True)
    return module


# Modules that a thread is quantizing, by identity: torch runs the quantizers, so no lock is held.
_claimed: set[int] = set()


@contextmanager
def claimed(module: nn.Module, label: str) -> Iterator[None]:
    """Keep other threads from quantizing a module, or a part of it, meanwhile."""
    identities, waiting = set(), [module]
    with CHANGING:
        while waiting:
            each = waiting.pop()
            identities.add(id(each))
            # A list, as another thread may add a module.
            waiting += [part for part in [*each._modules.values()] if part is not None]
        if identities & _claimed:
            raise RuleValueError(f"{label} is being quantized by another thread: quantize it once")
        _claimed.update(identities)
    try:
        yield
    finally:
        with CHANGING:
            _claimed.difference_update(identities)


def plan_weights(
    module: nn.Module, shown: str, how: Quantization, axis: int | tuple[int, ...] | None
) -> list[tuple[nn.Module, str, Quantizer]]:
    plan = []
    for owner, name in list_weights(module, shown):
        weight = getattr(owner, name).detach()
        axes = axes_of(f"{shown}.{name}", axis, weight.ndim)
        statistics = look_at(weight.cpu().double().numpy(), axes)
        plan.append((owner, name, Quantizer(how, statistics, weight)))
    return plan


def plan_inputs(module: nn.Module, shown: str, how: Quantization, sample: Any) -> Quantizer:
    """Return a quantizer that starts from a sample of inputs, or from a standard normal."""
    if isinstance(module, CONTAINERS) or is_network(module) or hasattr(module, INPUTS):
        raise RuleTypeError(
            f"{shown}: a network, or a layer whose inputs are quantized, takes no quantizer of "
            "inputs: quantize the layers within it"
        )
    statistics = STANDARD
    if sample is not None:
        is_tensor = isinstance(sample, torch.Tensor) and not sample.is_meta
        statistics = look_at(sample.detach().cpu().double().numpy() if is_tensor else sample, ())
    return Quantizer(how, statistics, like=next(module.parameters(), None))


def is_network(module: nn.Module) -> bool:
    """Return whether weights are in several layers within a module, and none are its own."""
    owners = [
        layer
        for path, layer in module.named_modules()
        if parametrize.is_parametrized(layer)
        or any(weight.ndim >= 2 for weight in layer.parameters(recurse=False))
        if "parametrizations" not in path.split(".")
    ]
    return len(owners) > 1 and module not in owners


def put_on_weight(owner: nn.Module, name: str, quantizer: Quantizer) -> None:
    parametrize.register_parametrization(owner, name, quantizer)
    # torch made this class for this module alone, so it may be changed.
    parametrized_class: Any = type(owner)
    parametrized_class.__reduce_ex__ = reduce_quantized


def quantize_input(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> Any:
    """Return the arguments with the first one quantized: the hook of a module's inputs."""
    quantize = getattr(module, INPUTS)
    if args:
        args = quantize(args[0]), *args[1:]
    elif kwargs:  # None where an old pickle registered the hook without with_kwargs
        first = next(iter(inspect.signature(module.forward).parameters))
        kwargs = {name: quantize(x) if name == first else x for name, x in kwargs.items()}
    return args if kwargs is None else (args, kwargs)


def list_weights(module: nn.Module, shown: str) -> list[tuple[nn.Module, str]]:
    weights = []
    for path, owner in module.named_modules():
        if parametrize.is_parametrized(owner):
            raise RuleValueError(
                f"{shown} is quantized already, or parametrized otherwise, in its layer {path!r}: "
                "quantize a layer once, and first"
            )
        for name, weight in owner.named_parameters(recurse=False):
            if is_lazy(weight):
                raise RuleValueError(f"{shown}: {name!r} has no values yet: call the module once")
            if weight.is_meta:
                raise RuleValueError(
                    f"{shown}: {name!r} is on the meta device, where it has no values from which a "
                    "quantizer starts: module.to_empty(device='cpu') and load its weights first"
                )
            if weight.ndim >= 2 and weight.is_floating_point() and "bias" not in name:
                if isinstance(owner, nn.RNNBase):
                    raise RuleTypeError(
                        f"{shown}: {type(owner).__name__} hands its weights to torch's kernels "
                        "past parametrizations: use a cell, as nn.LSTMCell, in a loop"
                    )
                weights.append((owner, name))
    if not weights:
        raise RuleValueError(
            f"{shown} has no weight of two axes or more: give weights=None, and activations"
        )
    return weights


def reduce_quantized(self: nn.Module, protocol: Any) -> Any:
    """Return how a pickle restores a quantized module: from the plain one and its quantizers."""
    lists: Any = self.parametrizations
    if any(not isinstance(each, Quantizer) for chain in lists.values() for each in chain):
        raise RuntimeError(
            "a module that has other parametrizations beside quantized weights is not pickled by "
            "torch: keep its state_dict()"
        )
    cls: Any = type(self).__bases__[0]
    plain = cls.__new__(cls)
    plain.__dict__ = {**vars(self), "_modules": {**self._modules}}
    plain.__dict__["_parameters"] = {**self._parameters}
    del plain._modules["parametrizations"]
    quantizers = {}
    for name, chain in lists.items():
        plain._parameters[name] = chain.original
        quantizers[name] = chain[0]
    return restore, (plain, quantizers, list(self._modules))


def restore(plain: nn.Module, quantizers: dict[str, Quantizer], order: list[str]) -> nn.Module:
    """Return the module with its weights quantized, and its submodules in the given order."""
    for name, quantizer in quantizers.items():
        put_on_weight(plain, name, quantizer)
    # Optimizers know parameters by their order, which is that of modules.
    plain._modules = {name: plain._modules[name] for name in order}
    return plain
