"""Rules on parameter gradients: hooks that act under `use(scope="params")` or `"all"`."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from multigrad.context import CURRENT, Application, current
from multigrad.lowering.lower import apply_rule


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

    def __enter__(self) -> ParamHooks:
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
