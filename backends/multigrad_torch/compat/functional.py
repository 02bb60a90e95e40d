"""FreeGrad's functional calls on torch: `vjp` and `jvp` of a function under a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch

from multigrad.core.lowering.derivatives import is_linear
from multigrad.core.rules.context import use
from multigrad.core.rules.registry import resolve
from multigrad.core.trace.trace import NeedsConcrete
from multigrad.errors import TraceError, UnsupportedOp

Tensor: TypeAlias = torch.Tensor


def _context(rule: Any, params: Mapping[str, Any] | None) -> AbstractContextManager[Any]:
    return nullcontext() if rule is None else use(rule, params)


def vjp(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    rule: Any = None,
    params: Mapping[str, Any] | None = None,
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return `f(x)` and the map from its cotangent to the gradient of x, under a rule.

    Examples:
        >>> import torch
        >>> from multigrad.functional import vjp
        >>> y, pull = vjp(xg.Activation("Heaviside"), torch.tensor([0.25]), rule="triangular")
        >>> pull(torch.ones(1))
        tensor([0.7500])

    Args:
        f: a function of one tensor.
        x: where to take it; not changed.
        rule: a name, a Rule or a function; None for the true derivative.
        params: values for the rule's params.
    """
    with torch.enable_grad(), _context(rule, params):  # also for a caller under no_grad
        x = x.detach().requires_grad_(True)
        y = f(x)

    def pullback(cotangent: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(y, x, cotangent, retain_graph=True)
        return grad

    return y, pullback


def jvp(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    v: Tensor,
    *,
    rule: Any = None,
    params: Mapping[str, Any] | None = None,
) -> Tensor:
    """Return the Jacobian of f at x times v, under a rule.

    The product is taken from the backward, as `J v = d/du <J^T u, v>`. So the rule acts, and must
    be linear in grad_out, or `J^T u` would not be linear in u.

    Examples:
        >>> import torch
        >>> from multigrad.functional import jvp
        >>> x, v = torch.tensor([0.25, 2.0]), torch.ones(2)
        >>> jvp(xg.Activation("Heaviside"), x, v, rule="triangular")
        tensor([0.7500, 0.0000])

    Args:
        f: a function of one tensor.
        x: where to take it; not changed.
        v: the tangent, of x's shape.
        rule: a name, a Rule or a function; None for the true derivative.
        params: values for the rule's params.

    Raises:
        UnsupportedOp: the rule is not linear in grad_out.
    """
    _check_linear(rule, params)
    with torch.enable_grad(), _context(rule, params):
        x = x.detach().requires_grad_(True)
        y = f(x)
        u = torch.zeros_like(y, requires_grad=True)
        (gradient,) = torch.autograd.grad(y, x, u, create_graph=True)
        if not gradient.requires_grad:  # the gradient does not depend on the cotangent
            return torch.zeros_like(y)
        (tangent,) = torch.autograd.grad(gradient, u, v, allow_unused=True)
    return torch.zeros_like(y) if tangent is None else tangent.detach()


def _check_linear(rule: Any, params: Mapping[str, Any] | None) -> None:
    if rule is None:
        return
    bound_rule = resolve(rule).bound_rule(params)
    try:
        graph = bound_rule.graph()
    # A rule without a graph cannot be checked, and is trusted.
    except (NeedsConcrete, TraceError):
        return
    # The product of a nonlinear rule would be a meaningless number.
    if not is_linear(graph):
        raise UnsupportedOp(
            f"rule {bound_rule.specialization.rule.name!r} is not linear in grad_out, so "
            "functional.jvp cannot take a product from its backward; use functional.vjp"
        )
