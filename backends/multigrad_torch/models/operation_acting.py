"""Operations' rules on modules: their methods run within the mode that sees the calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from multigrad.errors import RuleValueError
from multigrad.models.interpose import MOST_NAMES, Layer

from ..compile.regions import is_second_run
from .layer_acting import OnLayer
from .layer_rules import CallRule
from .operation_mode import (
    HARDTANH,
    OperationMode,
    find_inner,
    is_entered,
    say_missing,
    stack_at,
)
from .operations import functions_calling
from .rule_over import is_compiling, refuse, stack_length
from .swapped_classes import Acting, Method, acting_on, is_parametrized, original_class

pop_mode = torch._C._pop_torch_function_stack
push_mode = torch._C._push_on_torch_function_stack


class ActingByMode(Acting):
    """Acts by a mode that sees operations."""

    def __init__(self, mode: OperationMode) -> None:
        super().__init__()
        self.mode = mode

    def goes_inside(self, other: Acting) -> bool:
        return isinstance(other, ActingByMode) and other.mode in self.mode.around


class OnModel(ActingByMode):
    """Stands on the model that a mode is for."""

    def __init__(self, mode: OperationMode) -> None:
        super().__init__(mode)
        mode.roots = self.all_modules


class OperationsActing(ActingByMode):
    """Methods of modules run within a mode."""

    def wrap(self, original: type, name: str, method: Method) -> Method:
        if inspect.isgeneratorfunction(method):
            return method
        if name != "forward" and original.__module__.startswith("torch.nn."):
            return method
        mode = self.mode

        @functools.wraps(method)
        def within(*args: Any, **kwargs: Any) -> Any:
            if is_entered(mode) or (not is_compiling() and is_second_run()):
                return method(*args, **kwargs)  # a second run is in the mode as its first was
            inner = find_inner(mode) if stack_length() else None
            if inner is None:
                with mode:
                    return method(*args, **kwargs)
            with mode, inner:  # its rules are asked first
                return method(*args, **kwargs)

        return within


class QuietActing(ActingByMode):
    """Layers of torch that call none of the mode's operations run without it: it sees each call."""

    def wrap(self, original: type, name: str, method: Method) -> Method:
        if name != "forward":
            return method
        mode = self.mode

        @functools.wraps(method)
        def forward(*args: Any, **kwargs: Any) -> Any:
            listens = is_compiling() or mode.seen is not None
            if listens or stack_length() != 1 or stack_at(0) is not mode:
                return method(*args, **kwargs)
            pop_mode()  # that one alone: a tensor of a class of its own is still seen by its class
            try:
                return method(*args, **kwargs)
            finally:
                push_mode(mode)

        return forward


class RootActing(OnModel):
    """After a call of the whole model, each of the mode's rules has acted."""

    def __init__(self, mode: OperationMode) -> None:
        super().__init__(mode)
        mode.say_layers = self.say_layers

    def say_layers(self, operation: str) -> str:
        """Return which layers have a rule of their own, that are an operation; "" if none."""
        names = [
            f"layer {name!r} ({type(module).__name__})"
            for model in self.all_modules()[:1]
            for name, module in model.named_modules()
            if any(isinstance(each, OnLayer) for each in acting_on(module))
            and may_call(module, {operation})
        ]
        one = len(names) == 1
        more = "" if len(names) <= MOST_NAMES else ", ..."
        words = " has a rule of its own" if one else " have rules of their own"
        return f" ({', '.join(names[:MOST_NAMES])}{more}{words})" if names else ""

    def wrap(self, original: type, name: str, method: Method) -> Method:
        if name != "forward":
            return method
        mode = self.mode
        key = mode.key

        @functools.wraps(method)
        def forward(*args: Any, **kwargs: Any) -> Any:
            is_inner = is_entered(mode) or (not is_compiling() and is_second_run())
            if is_inner or mode.seen is None or is_compiling():
                output = method(*args, **kwargs)
            else:
                with mode:
                    output = method(*args, **kwargs)
            if not is_inner:
                message = ""
                if is_compiling():
                    message = say_missing(key)
                    if message:
                        torch._dynamo.graph_break(msg=message)
                elif mode.seen is not None:
                    message = mode.say_missing()
                if message:
                    refuse(message)
            return output

        return forward


def make_mode(
    model: torch.nn.Module, layers: Sequence[Layer], rules: Mapping[str, CallRule]
) -> OperationMode:
    """Return what gives operations of a model rules. Of two models within each other the inner
    one's rules win there.

    Raises:
        RuleValueError: an operation has a rule already, in this model or in a layer that it shares
            with one which neither holds it nor lies inside of it.
    """
    mode = OperationMode(rules)
    parts = {id(layer.layer) for layer in layers}
    for layer in layers:
        for other in acting_on(layer.layer):
            if not isinstance(other, OperationsActing | OnModel):
                continue
            names, roots = other.mode.hits.keys() & mode.hits.keys(), other.mode.roots()
            if not names:
                continue
            if any(root is model for root in roots):
                where = f"in this {original_class(model).__name__}"
            elif any(id(root) in parts for root in roots):
                put_around(other.mode, mode)
                continue
            elif any(each is model for root in roots for each in root.modules()):
                put_around(mode, other.mode)
                continue
            else:
                where = f"in layer {layer.names[0] or '(model)'!r}, by another model that shares it"
            raise RuleValueError(
                f"operation {min(names)!r} has a rule {where} already: detach that first"
            )
    return mode


def put_around(inner: OperationMode, outer: OperationMode) -> None:
    """Note that a model lies inside of another one, as long as that has its rules."""
    inner.around = (*(each for each in inner.around if each.roots() and each is not outer), outer)


def may_call(module: torch.nn.Module, operations: set[str]) -> bool:
    """Return whether code of a module may call one of some operations: of torch's own layers it is
    known.
    """
    cls = original_class(module)
    is_own = not cls.__module__.startswith("torch.nn.modules.")
    if is_own or is_parametrized(type(module)) or "forward" in vars(module):
        return True
    within = {each.__name__ for each in functions_calling(frozenset(operations))}
    names = {
        each.strip("_")
        for base in cls.__mro__[: cls.__mro__.index(torch.nn.Module)]
        for method in vars(base).values()
        if inspect.isfunction(method)
        for each in method.__code__.co_names
    }
    return not names.isdisjoint(operations | within | ({HARDTANH} & names))
