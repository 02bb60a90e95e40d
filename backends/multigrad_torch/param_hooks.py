"""Rules on parameter gradients, by torch's hooks.

A hook on a parameter transforms its gradient by the rule in force at the last forward of the module that owns it. Hooks
are attached by `attach_param_hooks`, or by themselves in each forward inside of a `use` that names the scope "params":
torch then calls `attach_at_forward` before every module. Both kinds share one register, so that no parameter has two.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeAlias

import torch
from torch import nn
from torch._dynamo import OptimizedModule
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.modules.module import register_module_forward_pre_hook

from multigrad.context import CURRENT, EMPTY, Application, Frame
from multigrad.lowering.entries import apply_rule

from .hooks import note_regions

Tensor: TypeAlias = Any
# Modules whose forward never runs; the last is nn.MultiheadAttention's projection.
HOLDERS = (nn.ParameterList, nn.ParameterDict, NonDynamicallyQuantizableLinear)


class ParamHooks:
    """The hooks on one model; `remove()` takes them off. Also a context manager that removes them."""

    def __init__(self, model: nn.Module) -> None:
        self._hooks: list[ParamHook] = []
        for module in model.modules():
            self._hooks += hook_module(module, by_itself=False)

    def remove(self) -> None:
        """Take the hooks off; the model is as before."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


def attach_param_hooks(model: nn.Module) -> ParamHooks:
    """Let rules of scope "params" and "all" act on the gradients of a model's parameters.

    The rule is that in force at the owning module's last forward, so it acts even where backward runs after the
    `with`. Frozen parameters are skipped; a parameter that is hooked already is not hooked twice. Inside of a `use` that
    names the scope "params", hooks attach by themselves; code that torch.compile has made before is not aware of them
    unless it is a compiled module: attach first, then compile.

    Example:
        >>> hooks = attach_param_hooks(model)
        >>> with xg.use("clip_norm", scope="all"):
        ...     loss = model(x).sum()
        >>> loss.backward()
        >>> hooks.remove()

    Returns:
        The hooks: `remove()` takes them off.
    """
    return ParamHooks(model)


def remove_param_hooks(model: nn.Module) -> None:
    """Take all hooks off a model's parameters, those that attached by themselves and those of `attach_param_hooks`.

    Example:
        >>> with xg.use("clip_norm", scope="params"):
        ...     model(x).sum().backward()
        >>> remove_param_hooks(model)
    """
    for parameter in nn.Module.parameters(model):  # the frozen ones too
        hook = find_hook(parameter)
        if hook is not None:
            hook.remove()
    for module in model.modules():
        for handle in (_forwards.pop(module, None), _compiled.pop(module, None)):
            if handle is not None:
                handle.remove()


# --- one parameter, one module ---------------------------------------------------------------------------


class ParamHook:
    """The hook on one parameter; keeps neither it nor the module alive."""

    def __init__(self, parameter: nn.Parameter, forwards: LastForward, by_itself: bool) -> None:
        self.forwards = forwards
        self.by_itself = by_itself
        self.parameter = weakref.ref(parameter, self._forget)
        self._identity = id(parameter)
        self._handle = parameter.register_hook(self)
        _hooks[self._identity] = self
        forwards.hooks.add(self)

    def __call__(self, grad: Tensor) -> Tensor:
        application = self.rule_in(self.forwards.frame) or self.rule_in(CURRENT.get())
        return grad if application is None else apply_rule(application, None, grad, None)

    def rule_in(self, frame: Frame) -> Application | None:
        """Return a frame's rule, if it acts through hooks of this kind."""
        return frame.params if frame.hooks_params or not self.by_itself else None

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()
        self._forget()

    def _forget(self, _: Any = None) -> None:
        if _hooks.get(self._identity) is self:  # else the identity is that of a later parameter
            del _hooks[self._identity]
        self.forwards.hooks.discard(self)
        if not self.forwards.hooks:
            self.forwards.remove()


class LastForward:
    """The frame at a module's last forward that records gradients."""

    def __init__(self) -> None:
        self.frame = EMPTY
        self.hooks: set[ParamHook] = set()
        self._handles: list[Any] = []

    def watch(self, module: nn.Module) -> None:
        """Note the frame at each forward of a module from now on."""
        self._handles.append(module.register_forward_pre_hook(self))

    @torch._dynamo.disable
    def __call__(self, module: nn.Module, inputs: Any) -> None:
        self.note()

    def note(self) -> None:
        """Note the frame in force."""
        note_regions()
        if torch.is_grad_enabled():  # an evaluation before backward does not count
            self.frame = CURRENT.get()

    def remove(self) -> None:
        """Note no forward any more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.frame = EMPTY

    def __deepcopy__(self, memo: Any) -> LastForward:
        return LastForward()  # what is copied is a module's own hooks, and no parameter's

    def __reduce__(self) -> Any:
        return LastForward, ()


_lock = threading.RLock()
_hooks: dict[int, ParamHook] = {}  # by the parameter's identity: parameters compare elementwise
_forwards: weakref.WeakKeyDictionary[nn.Module, LastForward] = weakref.WeakKeyDictionary()
# The handles of `note_inside`, by compiled module.
_compiled: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


def hook_module(module: nn.Module, by_itself: bool) -> list[ParamHook]:
    """Hook a module's own trainable parameters that are not hooked yet, and return their hooks.

    A hook that attached by itself gives way to one that was asked for.
    """
    made = []
    for parameter in own_parameters(module):
        known = find_hook(parameter)
        if known is not None and (by_itself or not known.by_itself):
            continue
        with _lock:
            if known is not None:
                known.remove()
            elif find_hook(parameter) is not None:  # another thread was faster
                continue
            made.append(ParamHook(parameter, forwards_of(module), by_itself))
    return made


def own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield a module's own trainable parameters, also those in lists and dicts, where Keras's layers have them."""
    for parameter in module._parameters.values():
        # Not what functional_call or a data-parallel replica puts in the place of parameters.
        if isinstance(parameter, nn.Parameter) and parameter.requires_grad and parameter.is_leaf:
            yield parameter
    for child in module._modules.values():
        if isinstance(child, HOLDERS):
            yield from own_parameters(child)


def find_hook(parameter: nn.Parameter) -> ParamHook | None:
    """Return the hook on a parameter."""
    hook = _hooks.get(id(parameter))
    return hook if hook is not None and hook.parameter() is parameter else None


def forwards_of(module: nn.Module) -> LastForward:
    """Return what notes a module's forwards."""
    forwards = _forwards.get(module)
    if forwards is None or not forwards.hooks:
        forwards = _forwards[module] = LastForward()
        forwards.watch(module)
    return forwards


# --- hooks that attach by themselves -----------------------------------------------------------------------

COMPILED_MODULE = r"Using `torch.compile\(module\)` when there are global hooks on modules"


class _Active:
    """How many `use` that name the scope "params" are entered now, on all threads."""

    number = 0
    handle: Any = None


@contextmanager
def hook_params() -> Iterator[None]:
    """Let hooks attach by themselves; the frame says on which thread, and in which task."""
    with _lock:
        if _Active.number == 0:
            expect_compiled_modules()
            _Active.handle = register_module_forward_pre_hook(attach_at_forward)
        _Active.number += 1
    try:
        yield
    finally:
        with _lock:
            _Active.number -= 1
            if _Active.number == 0:
                _Active.handle.remove()


def expect_compiled_modules() -> None:
    """Silence torch's warning that our hook is called for a compiled module too: it is meant to be."""
    # Each change of the filters lets Python repeat warnings that it has shown, so there is at most one.
    known = (getattr(message, "pattern", None) for _, message, *_ in warnings.filters)
    if COMPILED_MODULE not in known:
        warnings.filterwarnings("ignore", COMPILED_MODULE, UserWarning)


@torch._dynamo.disable
def attach_at_forward(module: nn.Module, inputs: Any) -> None:
    """Hook a module's own parameters before its forward, where the frame says so."""
    if not CURRENT.get().hooks_params or torch._C._are_functorch_transforms_active():
        return
    if isinstance(module, OptimizedModule):
        for inner in module.modules():
            hook_module(inner, by_itself=True)
        if module not in _compiled:
            _compiled[module] = module.register_forward_pre_hook(note_inside)
            note_inside(module, inputs)
    else:
        made = hook_module(module, by_itself=True)
        if made:  # too late for the module to call its new hook in this forward
            made[0].forwards.note()


def note_inside(module: nn.Module, inputs: Any) -> None:
    """Note a forward of all modules in a compiled one: code that was made before their hooks does not call them."""
    for inner in module.modules():
        forwards = _forwards.get(inner)
        if forwards is not None and forwards.hooks:
            forwards.note()
