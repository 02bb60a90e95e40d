"""`xg.attach`: rules on a model that exists, taken off by one call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol, TypeAlias, overload

from ..backend.finding.discovery import in_use, refuse_unusable
from ..errors import RuleTypeError
from ..functions.importers import framework_of
from ..graph.support.typed import P, R
from ..rules.model.rule import Rule
from .attribution.composites import Composite
from .handle import Attachment
from .override import Overridden, override

__all__ = ["attach"]

Rules: TypeAlias = Mapping[Any, str | Rule | Callable[..., Any]] | Composite


class HasModules(Protocol):
    """A model of torch, as far as a type checker is told."""

    def named_modules(self) -> Any: ...


class HasConfig(Protocol):
    """A model or a layer of Keras, as far as a type checker is told."""

    def get_config(self) -> Any: ...


@overload
def attach(model: HasModules | HasConfig, rules: Rules) -> Attachment: ...
@overload
def attach(model: Callable[P, R], rules: Rules) -> Overridden[P, R]: ...
def attach(model: Any, rules: Rules) -> Attachment | Overridden[..., Any]:
    """Put rules on layers and operations of an existing model: it computes the same values, and its
    gradients follow the rules. For a function, return one with rules on the operations it calls.

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
        >>> clipped = xg.attach(lambda x: torch.relu(x) * 2.0, {"relu": "guided"})
        >>> clipped(torch.ones(2))
        tensor([2., 2.])

    Args:
        model: a `torch.nn.Module` or a Keras model or layer; it is changed in place until the
            handle is detached. Its state dict, weights, parameters and pickles stay as they are. Or
            a function of tensors, as a model of jax is one, which stays as it is: see
            `xg.override`, which takes these alone.
        rules: `{selector: rule}`, or one of `xg.composites`. A selector is an operation by name
            ("relu") or as the framework's function (`torch.nn.functional.relu`, which is also
            `torch.relu`, the method, in place or not, and what `nn.ReLU` calls); a pattern for
            layers' names ("layer1.*.relu"); a type of layers; a predicate of a layer, or of its
            name and the layer; or a tuple of these. A rule is a name, a Rule, a function, or one
            that reads a layer's weights (`xg.attribution`). It acts on the gradient of the layer's
            input; weights keep their own gradients.

    Returns:
        A handle: a context manager with `.detach()`, which prints as a table of what was changed.
        Of a function, a function that computes what it computes.

    Raises:
        RuleValueError: a selector matches nothing, or a layer is meant by two rules.
        RuleError: a rule is unknown, or needs a param.
        RuleTypeError: it is neither such a model nor a function.
    """
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Operation):
        # By name: the rooms of Keras stand above, and are for its models alone.
        return import_module("multigrad.keras.models.attach").attach(model, rules)
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
    if callable(model) and not isinstance(model, type):
        return override(model, rules)
    raise RuleTypeError(
        f"cannot attach rules to a {type(model).__module__}.{type(model).__qualname__}: expected a "
        "torch.nn.Module, a Keras model or a function of tensors, as a model of jax is one"
    )
