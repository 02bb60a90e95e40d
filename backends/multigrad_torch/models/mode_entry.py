"""Methods of a model's modules that enter the mode which applies rules to operations.

`attach.py` plans which module gets which of the classes here; the mode itself is in `override.py`.
Tests: `tests/models/test_attach_operations_torch.py`.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from multigrad.models.selectors import MOST_NAMES, refuse_second

from .call_rule import is_compiling, stack_length
from .layer_rule import LayerInterceptor, acts_in_regions
from .override import (
    HARDTANH,
    OperationMode,
    check_met,
    find_inner,
    functions_calling,
    is_entered,
    stack_at,
)
from .regions import is_around_region, is_second_run
from .swapped_classes import Acting, Method, acting_on, is_parametrized, original_class

pop_mode = torch._C._pop_torch_function_stack
push_mode = torch._C._push_on_torch_function_stack


class ActingByMode(Acting):
    """Wraps methods of modules for the sake of one mode."""

    def __init__(self, mode: OperationMode) -> None:
        super().__init__()
        self.mode = mode
        mode.entered_by.add(id(self))

    def goes_inside(self, other: Acting) -> bool:
        return isinstance(other, ActingByMode) and other.mode in self.mode.around


def acts_here(acting: Acting, module: torch.nn.Module) -> bool:
    return is_compiling() or not is_around_region() or acts_in_regions(acting, module)


class ModeEntry(ActingByMode):
    """Enters the mode around each method of a module, whose code may call the mode's operations."""

    def wrap(self, original: type, name: str, method: Method) -> Method:
        if inspect.isgeneratorfunction(method):
            return method
        if name != "forward" and original.__module__.startswith("torch.nn."):
            return method
        mode = self.mode

        @functools.wraps(method)
        def within(*args: Any, **kwargs: Any) -> Any:
            # A region that began in the mode enters it by itself when it runs again.
            if is_entered(mode) or not acts_here(self, args[0]):
                return method(*args, **kwargs)
            inner = find_inner(mode) if stack_length() else None
            if inner is None:
                with mode:
                    return method(*args, **kwargs)
            with mode, inner:  # the inner model's rules go first
                return method(*args, **kwargs)

        return within


class ModePause(ActingByMode):
    """Suspends the mode in a layer of torch with none of its operations: each look would cost."""

    def around_forward(self, original: type, method: Method) -> Method:
        mode = self.mode

        def forward(*args: Any, **kwargs: Any) -> Any:
            listens = is_compiling() or mode.seen is not None
            if listens or stack_length() != 1 or stack_at(0) is not mode:
                return method(*args, **kwargs)
            # Only the mode is suspended: tensor subclasses still see the calls.
            pop_mode()
            try:
                return method(*args, **kwargs)
            finally:
                push_mode(mode)

        return forward


class ModeRoot(ActingByMode):
    """Acts on the model that a mode is for: checks after a call of the whole that its rules have
    acted. By it the mode knows that model and its copies.
    """

    def __init__(self, mode: OperationMode) -> None:
        super().__init__(mode)
        mode.roots = self.all_modules
        mode.advise = self.advise

    def refuse(self, module: torch.nn.Module, name: str) -> None:
        """Note the modes around and within; RuleValueError if an operation has two rules."""
        parts = {id(each) for each in module.modules()}
        for path, part in module.named_modules():
            for other in acting_on(part):
                if isinstance(other, ModeEntry | ModeRoot):
                    nest_modes(self.mode, other, module, parts, path)

    def advise(self, operation: str) -> str:
        """Return advice about an operation that the model does not call: which layers that are it
        have rules of their own.
        """
        names = [
            f"layer {name!r} ({type(module).__name__})"
            for model in self.all_modules()[:1]
            for name, module in model.named_modules()
            if any(isinstance(each, LayerInterceptor) for each in acting_on(module))
            and may_call(module, {operation})
        ]
        ellipsis = "" if len(names) <= MOST_NAMES else ", ..."
        verb = "has a rule of its own" if len(names) == 1 else "have rules of their own"
        layers = f" ({', '.join(names[:MOST_NAMES])}{ellipsis} {verb})" if names else ""
        return (
            f", so its rule acts nowhere{layers}. For a layer of that name, give a predicate: "
            f"lambda name, layer: name == {operation!r}"
        )

    def around_forward(self, original: type, method: Method) -> Method:
        mode = self.mode

        def forward(*args: Any, **kwargs: Any) -> Any:
            if is_entered(mode):  # within an outer call of the model
                return method(*args, **kwargs)
            if is_compiling():
                output = method(*args, **kwargs)
                check_met(mode)
                return output
            is_again = is_second_run()
            have_all_acted = mode.seen is None and not is_again
            # A region whose first run was within an outer call enters the mode by itself.
            if have_all_acted or not acts_here(self, args[0]):
                return method(*args, **kwargs)
            if not is_again:
                mode.start((args, kwargs))
            with mode:  # calls outside the methods of modules are noted, too
                output = method(*args, **kwargs)
            if not is_again:
                check_met(mode)
            return output

        return forward


def nest_modes(
    mode: OperationMode, acting: ActingByMode, model: torch.nn.Module, parts: set[int], name: str
) -> None:
    """Note which of two modes with rules on one operation goes around the other.

    The inner model's rules win in it; two models of which none contains the other are refused.
    The first mode is that of `model`, with the modules `parts`; the other acts on that of a name.
    """
    other = acting.mode
    shared_operations, roots = other.hits.keys() & mode.hits.keys(), other.roots()
    if not shared_operations:
        return
    if any(root is model for root in roots):
        where = f" in this {original_class(model).__name__}"
    elif any(id(root) in parts for root in roots):
        return put_around(other, mode)
    elif any(each is model for root in roots for each in root.modules()):
        return put_around(mode, other)
    else:
        where = f" in layer {name or '(model)'!r}, by another model that shares it"
    subject, by = f"operation {min(shared_operations)!r}", ""
    if other.composite is not None:
        by = f", by composite {other.composite.name!r}"
        # Two composites share operations that the model may not have: none of them is named.
        subject = subject if mode.composite is None else "an operation"
    refuse_second(subject, acting.handle, where=where + by)


def put_around(inner: OperationMode, outer: OperationMode) -> None:
    """Note that a model lies within another one, as long as the outer one has its rules."""
    inner.around = (*(each for each in inner.around if each.roots() and each is not outer), outer)


def may_call(module: torch.nn.Module, operations: set[str]) -> bool:
    """Return whether a module's code may call some operations; certain for torch's own layers."""
    cls = original_class(module)
    is_own = not cls.__module__.startswith("torch.nn.modules.")
    if is_own or is_parametrized(type(module)) or "forward" in vars(module):
        return True
    callers = {each.__name__ for each in functions_calling(operations)}
    names = {
        each.strip("_")
        for base in cls.__mro__[: cls.__mro__.index(torch.nn.Module)]
        for method in vars(base).values()
        if inspect.isfunction(method)
        for each in method.__code__.co_names
    }
    return not names.isdisjoint(operations | callers | ({HARDTANH} & names))
