"""`xg.apply_to_gradients`: a rule on gradients that exist already, in any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .context import CURRENT, Application, Counter, apply_now, normalize_key
from .errors import BackendNotFound, RuleError
from .lowering.backend import backend_of
from .lowering.entries import apply_rule
from .rule import Rule


def apply_to_gradients(
    grads: Any,
    rule: str | Rule | Callable[..., Any] | None = None,
    params: Mapping[str, Any] | None = None,
    *,
    key: Any = None,
) -> Any:
    """Apply a rule to each gradient of a pytree, with `tin=None`.

    Example:
        >>> grads = xg.apply_to_gradients(grads, "clip_norm", {"max_norm": 1.0})

    Args:
        grads: a tensor, or a list, tuple, dict or any registered pytree of them; None stays None.
        rule: a name, a Rule or a function; None takes the rule that `use` put in force for the scope
            "params" or "all". Without one, the gradients are returned as they are.
        params: values for the rule's params.
        key: the key of random rules; each leaf counts as one application.

    Returns:
        The same structure; every leaf keeps shape and dtype.

    Raises:
        RuleError: the rule or a param is unknown.
        BackendNotFound: a leaf is no tensor of an installed framework.
    """
    import optree

    application = _application(rule, params, key)
    return optree.tree_map(  # type: ignore[return-value]
        lambda leaf: None if leaf is None else _apply(application, leaf), grads, none_is_leaf=True
    )


def _application(rule: Any, params: Mapping[str, Any] | None, key: Any) -> Application | None:
    if rule is not None:
        return apply_now(rule, params, key)
    if params:
        raise RuleError(f"params {sorted(params)} need a rule to take them")
    framed = CURRENT.get().params
    if framed is None or key is None:
        return framed
    return Application(framed.spec, normalize_key(key), Counter())


def _apply(application: Application | None, leaf: Any) -> Any:
    try:
        backend = backend_of(leaf)
    except BackendNotFound as error:
        if application is None:
            return leaf
        raise BackendNotFound(f"apply_to_gradients met a leaf that is no tensor: {error}") from None
    if backend.guard is not None:
        backend.guard(leaf, None)  # also without a rule: that is what a trace would keep
    if application is None:
        return leaf
    return apply_rule(application, None, leaf, None)
