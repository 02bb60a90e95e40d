"""Rules on gradients of special kinds: sparse, scaled by a GradScaler, or reduced by DDP."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch.autograd import Variable

from multigrad.core.rules.context import RuleInForce
from multigrad.core.rules.rule_application import apply_rule
from multigrad.engine.rules.model.rule_graphs import likely_graph
from multigrad.errors import GradientError, MultigradError

Tensor: TypeAlias = torch.Tensor


def apply_to_gradient(in_force: RuleInForce, grad: Tensor, name: str) -> Tensor:
    if grad.layout is torch.strided:
        return apply_rule(in_force, None, grad, None)
    rule = in_force.specialization.rule.name
    what = f"rule {rule!r} cannot act on the gradient of parameter {name!r}, which is {grad.layout}"
    way_out = "Make it dense (sparse=False for an embedding), or leave the parameter out"
    if grad.layout is not torch.sparse_coo:
        raise GradientError(f"{what}. {way_out}")
    grad = grad.coalesce()
    values = grad.values()
    if draws(in_force):
        raise GradientError(f"{what}: it would draw for the zeros too. {way_out}")
    result = apply_rule(in_force, None, values, None)
    # With one more row of zeros, a rule for which zeros count (a mean) returns something else.
    longer_values = torch.cat([values, values.new_zeros(1, *values.shape[1:])])
    longer_result = apply_rule(in_force, None, longer_values, None)
    if not fits(longer_result, result):
        raise GradientError(f"{what}: zeros that are not stored count for it. {way_out}")
    # As an argument of sparse_coo_tensor it does not stop a warning of torch 2.11.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        return torch.sparse_coo_tensor(grad.indices(), result, grad.shape, is_coalesced=True)


def draws(in_force: RuleInForce) -> bool:
    """Return whether a rule is random, as far as its captured graph tells."""
    graph, _ = likely_graph(in_force, False)
    return graph is not None and graph.input("key") is not None


def fits(padded: Tensor, result: Tensor) -> bool:
    """Return whether a row of zeros gave zeros and left the other rows unchanged."""
    rows = len(result)
    is_same = torch.allclose(
        padded[:rows].double(),
        result.double(),
        rtol=1e-2 if result.itemsize < 4 else 1e-5,  # sums round in another order
        atol=0.0,
        equal_nan=True,
    )
    return is_same and not padded[rows:].any()


def apply_unscaled(in_force: RuleInForce, grad: Tensor, name: str, scaler: Any) -> Tensor:
    """Apply a rule to a gradient without the scale of a GradScaler, and scale what it returns.

    A gradient with inf or NaN stays unchanged: the scaler looks for these to skip the step.
    """
    scale = find_scale(scaler)
    if scale is None:
        return apply_to_gradient(in_force, grad, name)
    values = grad.coalesce().values() if grad.layout is torch.sparse_coo else grad
    is_finite = torch.isfinite(values).all()
    result = apply_to_gradient(in_force, grad / scale, name) * scale
    if grad.layout is not torch.strided:
        return result if is_finite else grad
    return torch.where(is_finite, result, grad)


def find_scale(scaler: Any) -> Tensor | None:
    """Return a GradScaler's scale, without a wait for the device if possible; None if disabled."""
    if not scaler.is_enabled():
        return None
    # `get_scale` synchronizes; before the first `scale` there is no tensor.
    async_scale = getattr(scaler, "_get_scale_async", scaler.get_scale)()
    return scaler.get_scale() if async_scale is None else async_scale


# DDP adds up the processes' gradients within backward, bucket by bucket, by any communication hook,
# and writes them to `grad` in a callback at its end. A rule acts in a later callback, so it
# composes with every communication hook, and its errors are raised where backward was called.
ReducedHook: TypeAlias = Any  # that of `param_hooks.py`


def ddp_modules(model: Any) -> list[Any]:
    """Return the DistributedDataParallel modules in a model, and first the one around it."""
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is None:  # not loaded, so that no module is one
        return []
    kind = parallel.DistributedDataParallel
    outer_modules = [] if kind._active_ddp_module is None else [kind._active_ddp_module]
    return [*outer_modules, *(each for each in model.modules() if isinstance(each, kind))]


class Reduction:
    """The all-reduces of one DDP module, and the hooks that act after them."""

    def __init__(self, module: Any) -> None:
        self.module: Callable[[], Any] = weakref.ref(module)
        self.hooks: list[ReducedHook] = []
        self.reached: dict[ReducedHook, RuleInForce | None] = {}
        self.syncs = True
        self.task = -1

    def note_forward(self) -> None:
        """Note whether the backward of this forward will reduce: not under `no_sync`."""
        module = self.module()
        if module is not None and torch.is_grad_enabled():
            self.syncs = module.require_backward_grad_sync

    def reach(self, hook: ReducedHook, in_force: RuleInForce | None) -> None:
        """Note that backward has reached a parameter, and act when it ends."""
        self.reached.pop(hook, None)
        self.reached[hook] = in_force  # removed and added: in the order of this backward
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task = task
            queue(self.wait)

    def wait(self) -> None:
        """Queue `finish` behind DDP's callback, which is queued after the last gradient."""
        queue(self.finish)

    def finish(self) -> None:
        self.task = -1
        if not self.syncs:
            return
        rules_by_hook, self.reached = self.reached, {}
        for hook in self.in_order(rules_by_hook):
            in_force = rules_by_hook[hook] if hook in rules_by_hook else hook.rule()
            if in_force is not None:
                self.act(hook, in_force)

    def in_order(self, reached: dict[ReducedHook, RuleInForce | None]) -> list[ReducedHook]:
        """Return the hooks whose gradients were reduced, in one order on all processes."""
        module = self.module()
        if not (module.find_unused_parameters or module.static_graph):
            return list(reached)
        # A parameter that any process has used has a gradient everywhere.
        is_used = torch.tensor([float(hook in reached) for hook in self.hooks])
        is_used = is_used.to(module.device) if module.device is not None else is_used
        torch.distributed.all_reduce(is_used, group=module.process_group)
        return [hook for hook, count in zip(self.hooks, is_used.tolist(), strict=True) if count]

    def act(self, hook: ReducedHook, in_force: RuleInForce) -> None:
        parameter = hook.parameter()
        if parameter is None or parameter.grad is None:
            return
        rule = in_force.specialization.rule.name
        what = f"rule {rule!r} cannot act on the reduced gradient of parameter {hook.name!r}"
        if hook.has_acted:
            raise GradientError(
                f"{what}: it was added to one on which a rule has acted. Call optimizer.zero_grad"
                "(set_to_none=True) before backward or, to accumulate gradients, run all but the "
                "last forward and backward inside `with model.no_sync():`"
            )
        if hasattr(parameter, "_in_backward_optimizers"):
            raise GradientError(
                f"{what}: an optimizer that runs within backward has used it already. Attach "
                "the hooks with reduced=False, or step the optimizer after backward"
            )
        if in_force.counter is None and draws(in_force):
            raise GradientError(
                f"{what}: without a key each process would draw other numbers, and its parameters "
                f"would differ from the others'. Give a key: xg.use({rule!r}, key=0)"
            )
        with torch.no_grad():
            result = hook.apply(in_force, parameter.grad)
            if result.layout is torch.strided:
                parameter.grad.copy_(result)  # in place: it may be a view of a bucket
            else:
                parameter.grad = result
        hook.has_acted = True


def queue(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)  # pyright: ignore


# --- parameters of fully_shard --------------------------------------------------------------------
def find_groups() -> Iterator[Any]:
    """Yield the groups of parameters of each module that `fully_shard` has sharded."""
    from torch.distributed._composable_state import _module_state_mapping

    states = {}
    for each in list(_module_state_mapping.values()):
        state = each() if isinstance(each, weakref.ref) else each  # itself before torch 2.6
        states[id(state)] = state
    for state in states.values():
        if hasattr(state, "_fsdp_param_groups"):
            yield from state._fsdp_param_groups
        elif hasattr(state, "_fsdp_param_group"):  # at most one, before torch 2.12
            yield from () if state._fsdp_param_group is None else (state._fsdp_param_group,)
        elif any(kind.__name__ == "FSDPState" for kind in type(state).__mro__):
            raise MultigradError(
                f"torch {torch.__version__} does not tell the parameters of fully_shard, on which "
                "the rule of scope 'params' acts: apply it to the gradients, "
                "xg.apply_to_gradients(grads, rule), before optimizer.step()"
            )
