"""Rules on parameter gradients, by hooks of torch.

A hook on a parameter transforms its gradient by the rule in force at the forward to which a
backward belongs: the forward of the module that owns it, or of a module around that, whichever came
last. Hooks are attached by `attach_param_hooks`, or automatically (`hook_params`). Both kinds share
one register, so that no parameter has two.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self, TypeAlias

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

from multigrad.core.rules.context import CURRENT, ActiveRules, RuleInForce
from multigrad.core.support.threads import make_lock
from multigrad.errors import GradientError

from .. import releases
from ..core import dynamo
from ..core.state import is_distributed
from ..dtensors import lay_out, layout_of
from .module_forwards import HOOKING, Forwards, forget, forget_idle, forwards_of, rules_for
from .special_gradients import (
    Reduction,
    apply_to_gradient,
    apply_unscaled,
    ddp_modules,
    find_groups,
)

Tensor: TypeAlias = torch.Tensor
# Modules whose forward never runs; the last is nn.MultiheadAttention's projection.
HOLDERS = (nn.ParameterList, nn.ParameterDict, NonDynamicallyQuantizableLinear)


class ParamHooks:
    """The hooks on one model; `remove()` removes them, and so does leaving them as a context
    manager.

    Examples:
        >>> import torch
        >>> from multigrad.hook import attach_param_hooks
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> with attach_param_hooks(model), xg.use("clip_norm", {"max_norm": 1.0}):
        ...     model(torch.tensor([[3.0, 4.0]])).sum().backward()
        >>> model.weight.grad
        tensor([[0.6000, 0.8000]])
    """

    def __init__(self, model: nn.Module, unscale: Any = None, reduced: bool = False) -> None:
        self.unscale = unscale
        self.reduced = reduced
        self.reductions: weakref.WeakKeyDictionary[nn.Module, Reduction]
        self.reductions = weakref.WeakKeyDictionary()
        self._model: Callable[[], nn.Module | None] = weakref.ref(model)
        self._hooks: list[ParamHook] = []
        with HOOKING:
            try:
                self.renew()
                root = forwards_of(model)
                root.renewals.append(self.renew)
                root.mark(model)
            except BaseException:
                self.remove()
                raise

    def renew(self) -> None:
        """Hook parameters that are new in the model, or have replaced hooked ones."""
        with HOOKING:
            model = self._model()
            if model is not None:
                hook_tree(model, self, self._hooks)
            if model is not None and self.reduced:
                self._find_reductions(model)

    def _find_reductions(self, model: nn.Module) -> None:
        for module in ddp_modules(model):
            reduction = self.reductions.get(module)
            if reduction is None:
                reduction = self.reductions[module] = Reduction(module)
                for parameter in module._module_parameters:
                    hook = find_hook(parameter)
                    if isinstance(hook, ReducedHook) and hook.group is self:
                        hook.reduction = reduction
                        reduction.hooks.append(hook)
            reduction.note_forward()

    def remove(self) -> None:
        """Remove the hooks, so that the model is as it was before."""
        with HOOKING:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            model, self._model = self._model(), _gone  # a forward on another thread may renew now
            if model is None:
                return
            root = forwards_of(model)
            # Other hooks of the same model may still renew theirs.
            if self.renew in root.renewals:
                root.renewals.remove(self.renew)
            forget_idle(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


def attach_param_hooks(
    model: nn.Module, *, unscale: Any = None, reduced: bool = False
) -> ParamHooks:
    """Let rules of scope "params" and "all" act on the gradients of a model's parameters.

    The rule is the one in force in the forward to which a backward belongs, so it acts even if
    backward runs after the `with`, or after another forward. Frozen parameters are skipped; a
    parameter is never hooked twice. Inside a `use` that names the scope "params", hooks are
    attached automatically to everything below a module that is called. Attach them yourself if code
    only calls methods of a model (`model.encode(x)`, `model.forward(x)`) and never the model
    itself; then the rule around backward acts. Code that was compiled before does not see hooks
    unless it is a compiled module: attach first, then compile.

    On several processes, a parameter of DistributedDataParallel has a gradient on each, and DDP
    averages them. A rule acts on each process's own gradient, before the averaging; with `reduced`,
    it acts on the mean, as on one device with the global batch. Gradients accumulated under
    `no_sync` are part of the mean, and the rule acts once, on all of them. Communication hooks of
    DDP run before the rule. This adds no communication, except one number for each parameter under
    `find_unused_parameters` and `static_graph`. The parameters of `fully_shard` always have reduced
    gradients, and for gradients that nothing reduces `reduced` makes no difference.
    `xg.apply_to_gradients` acts where it is called: between backward and `optimizer.step()`
    gradients are reduced.

    Examples:
        >>> import torch
        >>> from multigrad.hook import attach_param_hooks
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> hooks = attach_param_hooks(model)
        >>> with xg.use("clip_norm", {"max_norm": 1.0}, scope="params"):
        ...     loss = model(torch.tensor([[3.0, 4.0]])).sum()
        >>> loss.backward()
        >>> model.weight.grad
        tensor([[0.6000, 0.8000]])

    Args:
        model: the model.
        unscale: the `torch.amp.GradScaler` that scales the loss, so that rules get the gradients
            without its scale (and what they return is scaled again, for `scaler.step`).
        reduced: act on the gradients of DistributedDataParallel after its all-reduce.

    Returns:
        The hooks: `remove()` removes them.

    Raises:
        GradientError: the model is a FullyShardedDataParallel, whose parameters get no gradient of
            their own. In backward, with `reduced`: the gradient was added to one on which a rule
            has acted; a random rule has no key, so processes would part.
    """
    return ParamHooks(model, unscale, reduced)


def remove_param_hooks(model: nn.Module) -> None:
    """Remove all hooks from a model's parameters, whether attached automatically or by
    `attach_param_hooks`.

    Examples:
        >>> import torch
        >>> from multigrad.hook import attach_param_hooks, remove_param_hooks
        >>> model = torch.nn.Linear(2, 1)
        >>> hooks = attach_param_hooks(model)
        >>> remove_param_hooks(model)
    """
    owners = owners_of_shards()
    with HOOKING:
        for parameter in nn.Module.parameters(model):  # the frozen ones too
            hook = find_hook(owners.get(id(parameter), parameter))
            if hook is not None:
                hook.remove()
        for module in model.modules():
            forget(module)


# --- one parameter --------------------------------------------------------------------------------


class ParamHook:
    """The hook on one parameter; keeps neither the parameter nor a module alive.

    Attributes:
        forwards: those of the module that owns it, and of the modules around that.
        group: the ParamHooks that it belongs to; None if it attached automatically.
    """

    def __init__(self, parameter: Tensor, name: str, group: ParamHooks | None) -> None:
        self.name = name
        self.group = group
        self.forwards: list[Forwards] = []
        self.parameter = weakref.ref(parameter, self._forget)
        self._identity = id(parameter)
        self._handle = self.register(parameter)
        _hooks[self._identity] = self

    def register(self, parameter: Tensor) -> Any:
        return parameter.register_hook(self)

    def __call__(self, grad: Tensor) -> Tensor:
        in_force = self.rule()
        if in_force is None:
            return grad
        if is_distributed(grad):  # its parts may not be added up yet
            # The rule needs the gradient itself, with the parameter's own placements.
            grad = lay_out(grad, layout_of(self.parameter()))
        return self.apply(in_force, grad)

    def rule(self) -> RuleInForce | None:
        # Code that calls methods of a model only has no noted forward: then the rule around
        # backward acts.
        return self.rule_in(rules_for(self.forwards)) or self.rule_in(CURRENT.get())

    def rule_in(self, active: ActiveRules) -> RuleInForce | None:
        """Return the params rule among these, if it acts through hooks of this kind."""
        return active.params if active.hooks_params or self.group is not None else None

    def apply(self, in_force: RuleInForce, grad: Tensor) -> Tensor:
        scaler = None if self.group is None else self.group.unscale
        if scaler is not None:
            return apply_unscaled(in_force, grad, self.name, scaler)
        if any(each.is_half for each in self.forwards):
            warn_of_scaled(in_force)
        return apply_to_gradient(in_force, grad, self.name)

    def go_by(self, forwards: Forwards) -> None:
        if forwards not in self.forwards:
            self.forwards.append(forwards)
            forwards.hooks.add(self)

    def remove(self) -> None:
        self._handle.remove()
        self._forget()

    def _forget(self, _: Any = None) -> None:
        if not _hooks:  # no table is left as Python ends
            return
        # The identity may belong to a later parameter by now.
        if _hooks.get(self._identity) is self:
            del _hooks[self._identity]
        for forwards in self.forwards:
            forwards.hooks.discard(self)
            if not forwards.hooks and not forwards.renewals:
                forwards.remove()


class ShardedHook(ParamHook):
    """The hook on a parameter of `fully_shard`, for the reduced gradient, unknown to autograd."""

    def register(self, parameter: Tensor) -> Any:
        """Let `fully_shard` call this after it has added to the gradient."""
        if not releases.has(releases.SHARDING):
            way_out = "xg.apply_to_gradients(grads, rule) before optimizer.step()"
            raise GradientError(releases.need(releases.SHARDING, f"apply it by {way_out}"))
        # The gradient that was there before, on which no rule may act again.
        self._left = (lambda: None) if parameter.grad is None else weakref.ref(parameter.grad)
        return parameter.register_post_accumulate_grad_hook(self)

    def __call__(self, parameter: Tensor) -> None:
        in_force = self.rule()
        if in_force is not None and parameter.grad is self._left():
            raise GradientError(
                f"rule {in_force.specialization.rule.name!r} cannot act on parameter {self.name!r} "
                "of fully_shard: its gradient was added to one that was there before. Call "
                "optimizer.zero_grad(set_to_none=True) before backward or, to accumulate "
                "gradients, apply the rule to their sum: xg.apply_to_gradients(grads, rule) "
                "before optimizer.step()"
            )
        if in_force is not None:
            parameter.grad = self.apply(in_force, parameter.grad)
        self._left = weakref.ref(parameter.grad)


class ReducedHook(ParamHook):
    """The hook on a parameter whose gradient is the mean over processes once backward ends."""

    reduction: Reduction | None = None
    has_acted = False  # on the present gradient

    def __call__(self, grad: Tensor) -> Tensor:
        if self.reduction is None:
            return super().__call__(grad)
        parameter = self.parameter()
        if parameter is not None and parameter.grad is None:
            self.has_acted = False
        # Within backward the rule of its forward is still known; the reduction acts at its end.
        self.reduction.reach(self, self.rule())
        return grad


def warn_of_scaled(in_force: RuleInForce) -> None:
    """Warn that gradients under float16 autocast are scaled, if no GradScaler was passed."""
    warnings.warn(
        f"rule {in_force.specialization.rule.name!r} acts on parameters' gradients of a forward "
        "under autocast to float16, which a GradScaler scales: pass it as "
        "multigrad.hook.attach_param_hooks(model, unscale=scaler), or call xg.apply_to_gradients "
        "after scaler.unscale_(optimizer)",
        UserWarning,
        stacklevel=2,
    )


def _gone() -> None: ...


# By identity, as parameters compare elementwise. An entry leaves with its parameter.
_hooks: dict[int, ParamHook] = {}


def find_hook(parameter: Tensor) -> ParamHook | None:
    hook = _hooks.get(id(parameter))
    return hook if hook is not None and hook.parameter() is parameter else None


# --- the parameters of a module -------------------------------------------------------------------


def hook_tree(root: nn.Module, group: ParamHooks | None, new_hooks: list[ParamHook]) -> None:
    """Hook the trainable parameters of a module and of all below it, and list the new hooks.

    A hook that attached automatically gives way to an explicit one. Everything that is refused is
    refused before the first hook is attached.
    """
    with HOOKING:
        # The whole plan first: the generator raises errors.
        for kind, parameter, name, chain in [*_plan_below(root, (), group, owners_of_shards())]:
            hook = find_hook(parameter)
            if hook is None or (group is not None and hook.group is None):
                if hook is not None:
                    hook.remove()
                hook = kind(parameter, f"{type(chain[0]).__name__}.{name}", group)
                new_hooks.append(hook)
            for each in chain:
                hook.go_by(forwards_of(each))


def _plan_below(
    module: nn.Module,
    around: tuple[nn.Module, ...],
    group: ParamHooks | None,
    owners: dict[int, Tensor],
) -> Iterator[tuple[type[ParamHook], Tensor, str, tuple[nn.Module, ...]]]:
    refuse_flat(module)
    chain = (module, *around)
    for name, parameter in own_parameters(module):
        owner = owners.get(id(parameter))
        kind = ReducedHook if group is not None and group.reduced else ParamHook
        kind = kind if owner is None else ShardedHook
        parameter = parameter if owner is None else owner
        hook = find_hook(parameter)
        present = None if hook is None else hook.group
        # Hooks that act at another time than those that are asked for now.
        if present is not None and group is not None and present.reduced != group.reduced:
            raise GradientError(
                f"the model has hooks of attach_param_hooks(model, reduced={present.reduced}): "
                "take them off first, multigrad.hook.remove_param_hooks(model)"
            )
        yield kind, parameter, name, chain
    for child in module._modules.values():
        if child is not None and not isinstance(child, HOLDERS) and child not in around:
            yield from _plan_below(child, chain, group, owners)


def own_parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a module's own trainable parameters, also those in lists and dicts."""
    in_transform = torch._C._are_functorch_transforms_active()
    for name, parameter in module._parameters.items():
        if parameter is None or is_lazy(parameter):
            continue
        if in_transform and torch._C._functorch.is_functorch_wrapped_tensor(parameter):
            refuse_transformed(module, name, parameter)
        # A data-parallel replica has non-leaf copies instead of parameters.
        elif parameter.requires_grad and parameter.is_leaf:
            yield name, parameter
    for name, child in module._modules.items():
        if isinstance(child, HOLDERS):
            yield from ((f"{name}.{inner}", each) for inner, each in own_parameters(child))


def refuse_transformed(module: nn.Module, name: str, value: Tensor) -> None:
    """Raise an error if a transform differentiates by the value that replaces a parameter."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(value):
        if functorch.is_gradtrackingtensor(value):
            raise GradientError(
                f"the rule of scope 'params' cannot act on {type(module).__name__}.{name}: "
                "torch.func differentiates what stands for it, and calls no hooks. Apply the rule "
                "to the gradients: xg.apply_to_gradients(grads, rule), outside this `use` or "
                "under scope='activations'"
            )
        value = functorch.get_unwrapped(value)


# `fully_shard` runs forward and backward on gathered parameters, and adds the reduced gradient to
# the sharded parameter itself. FullyShardedDataParallel flattens several parameters into one, and
# each process has an arbitrary slice of its gradient: no rule for one parameter can act there.

# Attributes of torch (2.13) with the tensors that modules hold instead of the sharded parameter.
STAND_INS = ("_unsharded_param", "_sharded_post_forward_param")


def owners_of_shards() -> dict[int, Tensor]:
    """Return the sharded parameters of `fully_shard`, by the identity of all their stand-ins."""
    if "torch.distributed.fsdp" not in sys.modules:
        return {}
    owners = {}
    for group in find_groups():
        for each in group.fsdp_params:
            owners[id(each.sharded_param)] = each.sharded_param
            for name in STAND_INS:
                owners[id(getattr(each, name, None))] = each.sharded_param
    owners.pop(id(None), None)  # stand-ins that are not there
    return owners


def refuse_flat(module: nn.Module) -> None:
    """Raise an error for a module whose parameters get no gradients that rules could act on."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and (isinstance(module, fsdp.FullyShardedDataParallel) or is_flat(module)):
        raise GradientError(
            "the rule of scope 'params' cannot act on the parameters of a "
            "FullyShardedDataParallel, which computes the gradient of a flat one in their place. "
            "Shard by torch.distributed.fsdp.fully_shard instead, or apply the rule before "
            "optimizer.step(): xg.apply_to_gradients(grads, rule) acts on each process's slice "
            "alone"
        )


def is_flat(module: nn.Module) -> bool:
    """Return whether a FullyShardedDataParallel around a module has flattened its parameters."""
    if not getattr(module, "_is_fsdp_managed_module", False):
        return False
    if not module._fsdp_use_orig_params:
        return True
    # The original parameters are marked; within forward, views of the flat one replace them.
    views = (value for value in vars(module).values() if isinstance(value, torch.Tensor))
    marks = (hasattr(parameter, "_fsdp_flattened") for parameter in module._parameters.values())
    return any(marks) or any(view.grad_fn is not None for view in views)


# Within a `use` that names the scope "params", torch calls `attach_at_forward` before each forward
# of every module.
COMPILED_MODULE = r"Using `torch.compile\(module\)` when there are global hooks on modules"
_entering = make_lock()


class _Active:
    """How many `use` with the scope "params" are entered on all threads; guarded by `_entering`."""

    number = 0
    hooks = ExitStack()  # closing it removes them, and ends force_eager on old releases


class _Outermost(threading.local):
    """The outermost module that is called now on this thread, and all modules below it."""

    module: Any = None
    below: Any = frozenset()


_OUTERMOST = _Outermost()


@contextmanager
def hook_params() -> Iterator[None]:
    """Let hooks attach automatically; the active rules decide in which thread and task."""
    with _entering:
        if _Active.number == 0:
            expect_compiled_modules()
            with ExitStack() as stack:
                if not releases.CALLS_HOOKS:
                    stack.enter_context(releases.force_eager())
                pre_hook = register_module_forward_pre_hook(attach_at_forward)
                stack.callback(pre_hook.remove)
                post_hook = register_module_forward_hook(attach_after_forward, always_call=True)
                stack.callback(post_hook.remove)
                _Active.hooks = stack.pop_all()
        _Active.number += 1
    try:
        yield
    finally:
        with _entering:
            _Active.number -= 1
            if _Active.number == 0:
                _Active.hooks.close()


def expect_compiled_modules() -> None:
    """Silence torch's warning that our hook is called for compiled modules, as it should be."""
    # Added once only: each change of the filters lets Python repeat warnings it has shown already.
    patterns = (getattr(message, "pattern", None) for _, message, *_ in warnings.filters)
    if COMPILED_MODULE not in patterns:
        warnings.filterwarnings("ignore", COMPILED_MODULE, UserWarning)


@dynamo.disable
def attach_at_forward(module: nn.Module, inputs: Any) -> None:
    """Hook all parameters below the outermost module before its forward, if rules ask for it."""
    if not CURRENT.get().hooks_params or module in _OUTERMOST.below:
        return
    hook_tree(module, None, [])
    forwards = forwards_of(module)
    forwards.mark(module)
    # In this forward torch no longer calls the pre-hook that was just registered.
    forwards.note()
    _OUTERMOST.module = weakref.ref(module)
    _OUTERMOST.below = weakref.WeakSet(module.modules())


@dynamo.disable
def attach_after_forward(module: nn.Module, inputs: Any, outputs: Any) -> None:
    """Hook parameters that the outermost module's forward has made, unless it failed."""
    if _OUTERMOST.module is None or _OUTERMOST.module() is not module:
        return
    _OUTERMOST.module, _OUTERMOST.below = None, frozenset()
    # With always_call=True torch passes None after an error.
    if outputs is not None and CURRENT.get().hooks_params:
        hook_tree(module, None, [])
