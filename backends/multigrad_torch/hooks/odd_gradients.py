"""Gradients that a rule does not get as they are: sparse ones, and those that a GradScaler has
scaled.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from multigrad.errors import GradientError
from multigrad.rules.context import RuleInForce
from multigrad.rules.model.bare import apply_rule

Tensor: TypeAlias = Any


def apply_to_gradient(in_force: RuleInForce, grad: Tensor, name: str) -> Tensor:
    """Apply a rule to the gradient of a parameter, also to a sparse one.

    Raises:
        GradientError: the rule cannot act on the layout of the gradient.
    """
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
    given = apply_rule(in_force, None, values, None)
    # As if one more row were there: rules for which zeros count (a mean) show it.
    more = torch.cat([values, values.new_zeros(1, *values.shape[1:])])
    padded = apply_rule(in_force, None, more, None)
    if not fits(padded, given):
        raise GradientError(f"{what}: zeros that are not stored count for it. {way_out}")
    # As an argument it does not stop a warning of torch 2.11.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        return torch.sparse_coo_tensor(grad.indices(), given, grad.shape, is_coalesced=True)


def draws(in_force: RuleInForce) -> bool:
    """Return whether a rule is random, as far as can be told."""
    graph, _ = in_force.bound_rule.likely_graph(False)
    return graph is not None and graph.input("key") is not None


def fits(padded: Tensor, given: Tensor) -> bool:
    """Return whether a row of zeros gave zeros, and left the others as they were."""
    rows = len(given)
    same = torch.allclose(
        padded[:rows].double(),
        given.double(),
        rtol=1e-2 if given.itemsize < 4 else 1e-5,
        atol=0.0,
        equal_nan=True,
    )
    return same and not padded[rows:].any()


def apply_unscaled(in_force: RuleInForce, grad: Tensor, name: str, scaler: Any) -> Tensor:
    """Apply a rule to a gradient without the scale of a GradScaler, and scale what it returns.

    A gradient that is not finite stays as it is: the scaler looks for that to skip the step.
    """
    scale = find_scale(scaler)
    if scale is None:
        return apply_to_gradient(in_force, grad, name)
    values = grad.coalesce().values() if grad.layout is torch.sparse_coo else grad
    finite = torch.isfinite(values).all()
    result = apply_to_gradient(in_force, grad / scale, name) * scale
    if grad.layout is not torch.strided:
        return result if finite else grad
    return torch.where(finite, result, grad)


def find_scale(scaler: Any) -> Tensor | None:
    """Return a GradScaler's scale, where the processor need not wait for it; None: it has none."""
    if not scaler.is_enabled():
        return None
    waiting = getattr(scaler, "_get_scale_async", scaler.get_scale)()
    return scaler.get_scale() if waiting is None else waiting
