"""Rules on existing PyTorch models and functions; each entry imports its module when it is called.

The imports are late because the rules of attribution make Functions, which need this backend, and
most programs never attach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from multigrad.models.attach import Attachment


def is_model(value: Any) -> bool:
    """Return whether rules can be attached to a value."""
    return isinstance(value, nn.Module)


def attach(model: nn.Module, rules: Any) -> Attachment:
    """Attach rules to layers and operations of a module; see `multigrad.attach.attach`."""
    from .attach import attach_rules

    return attach_rules(model, rules)


def quantize(module: nn.Module, weights: Any, activations: Any, **options: Any) -> nn.Module:
    """Quantize a module in place; see `xg.quantize`."""
    from .quantize import quantize_module

    return quantize_module(module, weights, activations, **options)


def kept(model: nn.Module, shapes: Any, dtypes: Any) -> Any:
    """Return the tensors that layers keep for backward; see `multigrad.memory`."""
    from .layer_memory import kept_by_layers

    return kept_by_layers(model, shapes, dtypes)


def kept_by_call(*args: Any) -> Any:
    """Return the tensors that layers of a Keras model keep for backward; see `multigrad.memory`."""
    from .layer_memory import kept_by_call

    return kept_by_call(*args)


def is_operation(selector: Any) -> bool:
    """Return whether a selector of `override` is a function of torch."""
    from .operation_names import find_operation

    # Python's own operators and strings are also selectors of other frameworks.
    module = getattr(selector, "__module__", None)
    return (
        not isinstance(selector, str)
        and module != "_operator"
        and (find_operation(selector) is not None)
    )


def override_function(function: Any, rules: Any) -> Any:
    """Return a function with rules on the operations that it calls; see `multigrad.override`."""
    from .override import override_calls

    return override_calls(function, rules)
