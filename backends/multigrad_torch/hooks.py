"""What hangs on torch's hooks: rules on parameter gradients, and regions that checkpoint runs again.

Parameter hooks act under `use(scope="params")` or `"all"`. A region under `torch.utils.checkpoint` runs forward
again within backward, perhaps outside of its `use`: it is noted at its first forward, and then runs under that frame.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self, TypeAlias

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from multigrad.activation import Activation, tracers
from multigrad.context import CURRENT, Application, Counter, Frame, current
from multigrad.lowering.backend import mirror_frame
from multigrad.lowering.entries import apply_rule

Tensor: TypeAlias = Any


class ParamHooks:
    """The hooks on one model; `remove()` takes them off. Also a context manager that removes them."""

    def __init__(self, model: nn.Module) -> None:
        self._handles: list[Any] = []
        for module in model.modules():
            own = [p for p in module.parameters(recurse=False) if p.requires_grad]
            own = [p for p in own if p not in _hooked]
            if own:
                self._attach(module, own)

    def _attach(self, module: nn.Module, parameters: list[nn.Parameter]) -> None:
        frames = _LastFrame()
        self._handles.append(module.register_forward_pre_hook(frames.note))
        for parameter in parameters:
            _hooked[parameter] = True
            hook = _Hook(frames)
            self._handles.append(_Handle(parameter, parameter.register_hook(hook)))

    def remove(self) -> None:
        """Take the hooks off; the model is as before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


class _Identity:
    """A weak map by identity: parameters compare elementwise."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, parameter: Any) -> bool:
        known = self._known.get(id(parameter))
        return known is not None and known() is parameter

    def __setitem__(self, parameter: Any, value: bool) -> None:
        self._known[id(parameter)] = weakref.ref(parameter)

    def discard(self, parameter: Any) -> None:
        self._known.pop(id(parameter), None)


_hooked = _Identity()


class _Handle:
    """One parameter's hook and its entry among the hooked ones."""

    def __init__(self, parameter: nn.Parameter, handle: Any) -> None:
        self.parameter = parameter
        self.handle = handle

    def remove(self) -> None:
        self.handle.remove()
        _hooked.discard(self.parameter)


class _LastFrame:
    """The rule that was in force at the owning module's last forward."""

    def __init__(self) -> None:
        self.application: Application | None = None

    def note(self, module: nn.Module, inputs: Any) -> None:
        self.application = current().params


class _Hook:
    """Transforms one parameter's gradient by the rule of the module's last forward."""

    def __init__(self, frames: _LastFrame) -> None:
        self.frames = frames

    def __call__(self, grad: torch.Tensor) -> torch.Tensor:
        application = self.frames.application or CURRENT.get().params
        if application is None:
            return grad
        return apply_rule(application, None, grad, None)


def attach_param_hooks(model: nn.Module) -> ParamHooks:
    """Let rules of scope "params" and "all" act on the gradients of a model's parameters.

    The rule is that in force at the owning module's last forward, so it acts even where backward runs after the
    `with`. Frozen parameters are skipped; a parameter that is hooked already is not hooked twice.

    Example:
        >>> hooks = attach_param_hooks(model)
        >>> with xg.use("clip_norm", scope="params"):
        ...     loss = model(x).sum()
        >>> loss.backward()
        >>> hooks.remove()

    Returns:
        The hooks: `remove()` takes them off.
    """
    return ParamHooks(model)


# --- checkpointed regions ----------------------------------------------------------------------------

top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
is_forward_mode_enabled = torch._C._is_fwd_grad_enabled


def may_run_again() -> bool:
    """Return whether `torch.utils.checkpoint` may be around this call, at 0.1 us where it is not.

    It sets hooks for saved tensors, or (reentrant) calls from an `autograd.Function`, where forward mode is off.
    """
    return top_hooks(True) is not None or not is_forward_mode_enabled()


def call_noted(activation: Activation, x: Tensor) -> Tensor:
    """Apply an activation in what may be a checkpointed region."""
    note_regions()
    return activation.apply(x)


def note_regions() -> None:
    """Tie each region around this call to the frame of its first forward.

    Called at the first application and at the first `use` in a region, so the frame is still that around it.
    """
    if torch.compiler.is_compiling() or not may_run_again():
        return
    for owner, name in (*hooked_regions(), *reentrant_regions()):
        function = getattr(owner, name)
        if not isinstance(function, RunAgain):
            setattr(owner, name, RunAgain(function, CURRENT.get()))


def hooked_regions() -> Iterator[tuple[Any, str]]:
    """Yield the regions of `use_reentrant=False`: each is held by its hook for saved tensors."""
    hooks = []
    while torch._C._autograd._saved_tensors_hooks_is_enabled() and (top := top_hooks(True)):
        torch._C._autograd._pop_saved_tensors_default_hooks()
        hooks.append(top)
    for pack, unpack in reversed(hooks):
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    for pack, _ in hooks:
        code = getattr(pack, "__code__", None)
        names = code.co_freevars if code is not None else ()
        if "frame" in names and pack.__module__ == CheckpointFunction.__module__:
            yield pack.__closure__[names.index("frame")].cell_contents, "recompute_fn"


def reentrant_regions() -> Iterator[tuple[Any, str]]:
    """Yield the regions of `use_reentrant=True`: each is an `autograd.Function` being called."""
    if is_forward_mode_enabled() or torch.is_inference_mode_enabled():
        return
    caller = sys._getframe()
    while caller is not None:
        if caller.f_code is CheckpointFunction.forward.__code__:
            yield caller.f_locals["ctx"], "run_function"
        caller = caller.f_back


class RunAgain:
    """A region's function, run under the frame of its first forward; draws count as they did there."""

    def __init__(self, function: Callable[..., Any], frame: Frame) -> None:
        self.function = function
        self.frame = frame
        application = frame.activations
        self.count = getattr(application.counter, "count", None) if application else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        frame = self.frame
        if self.count is not None and frame.activations is not None:
            counter = Counter()
            counter.advance(self.count)
            application = Application(frame.activations.spec, frame.activations.key, counter)
            frame = Frame(application, frame.params, frame.token)
        with ExitStack() as stack:
            mirror_frame(stack, frame.token)
            stack.callback(CURRENT.reset, CURRENT.set(frame))
            return self.function(*args, **kwargs)


tracers.append((torch.Tensor, may_run_again, call_noted))
