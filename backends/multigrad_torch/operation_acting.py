"""Operations' rules on modules: their methods run within the mode that sees the calls."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from .hooks import is_second_run
from .operation_mode import HARDTANH, OperationMode, is_entered, refuse, say_missing, stack_at
from .operations import functions_calling
from .rule_over import is_compiling, stack_length
from .swapped_classes import Acting, Method, is_parametrized, original_class

pop_mode = torch._C._pop_torch_function_stack
push_mode = torch._C._push_on_torch_function_stack


class ActingByMode(Acting):
    """Acts by a mode that sees operations."""

    def __init__(self, mode: OperationMode) -> None:
        super().__init__()
        self.mode = mode


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
            with mode:
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


class RootActing(ActingByMode):
    """After a call of the whole model, each of the mode's rules has acted."""

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


def may_call(module: torch.nn.Module, operations: set[str]) -> bool:
    """Return whether code of a module may call one of some operations: of torch's own layers it is
    known.
    """
    cls = original_class(module)
    is_own = not cls.__module__.startswith("torch.nn.modules.")
    if is_own or is_parametrized(type(module)) or "forward" in vars(module):
        return True
    within = {each.__name__ for each in functions_calling(operations)}
    names = {
        each.strip("_")
        for base in cls.__mro__[: cls.__mro__.index(torch.nn.Module)]
        for method in vars(base).values()
        if inspect.isfunction(method)
        for each in method.__code__.co_names
    }
    return not names.isdisjoint(operations | within | ({HARDTANH} & names))
