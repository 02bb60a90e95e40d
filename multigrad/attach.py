"""`xg.attach`: rules on a model that exists, taken off by one call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from .attribution.composites import Composite
from .backend.discovery import in_use, refuse_unusable
from .errors import RuleTypeError
from .functions.importers import framework_of
from .models.handle import Attachment
from .rulebook.rule import Rule

__all__ = ["attach"]


def attach(
    model: Any, rules: Mapping[Any, str | Rule | Callable[..., Any]] | Composite
) -> Attachment:
    """Put rules on layers and operations of a model that exists: it computes what it computed, and
    its gradients are the rules'.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> x = torch.ones(1, 2, requires_grad=True)
        >>> with xg.attach(model, {"relu": "guided"}) as handle:
        ...     heat = torch.autograd.grad(model(x).sum(), x)[0]
        >>> heat.shape
        torch.Size([1, 2])
        >>> print(handle)
        name  kind       rule    selector
        ---------------------------------
        relu  operation  guided  relu
        (detached)

    Args:
        model: a `torch.nn.Module` or a Keras model or layer; it is changed in place until the
            handle is detached. Its state dict, weights, parameters and pickles stay as they are.
        rules: `{selector: rule}`, or one of `xg.composites`. A selector is an operation by name
            ("relu") or as the framework's function (`torch.nn.functional.relu`, which is also
            `torch.relu`, the method, in place or not, and what `nn.ReLU` calls); a pattern for
            layers' names ("layer1.*.relu"); a type of layers; a predicate of a layer, or of its
            name and the layer; or a tuple of these. A rule is a name, a Rule, a function, or one
            that reads a layer's weights (`xg.attribution`). It acts on the gradient of the layer's
            input; weights keep their own gradients.

    Returns:
        A handle: a context manager with `.detach()`, which prints as a table of what was changed.

    Raises:
        RuleValueError: a selector matches nothing, or a layer is meant by two rules.
        RuleError: a rule is unknown, or needs a param.
        RuleTypeError: it is no such model; a jax function is changed by `xg.override`.
    """
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Operation):
        from .keras.attach import attach as attach_keras

        return attach_keras(model, rules)
    for backend in in_use():
        models = backend.models
        if models.attach is not None and models.is_model is not None and models.is_model(model):
            return models.attach(model, rules)
        if models.attach is models.override is None and backend.name == framework_of(type(model)):
            raise RuleTypeError(
                f"backend {backend.name!r} attaches no rules to models, as this "
                f"{type(model).__qualname__}: call xg.activation(forward, rule) in the model's code"
            )
    refuse_unusable(type(model))
    raise RuleTypeError(
        f"cannot attach rules to a {type(model).__module__}.{type(model).__qualname__}: expected a "
        "torch.nn.Module or a Keras model. For a function, and for models of jax, write "
        "xg.override(model, {operation: rule}), which returns a function"
    )
