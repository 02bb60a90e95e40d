"""`xg.quantize`: a layer of torch or Keras whose weights, and inputs, are quantized."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, TypeVar, overload

from ..backend.finding.discovery import in_use, refuse_unusable
from ..errors import RuleTypeError
from ..rules.estimators.starts import Description
from .attach import HasConfig, HasModules

__all__ = ["quantize"]

M = TypeVar("M", bound=HasModules)


@overload
def quantize(
    layer: M,
    weights: Description | None = "lsq",
    activations: Description | None = None,
    *,
    bits: int = 4,
    axis: int | tuple[int, ...] | None = None,
    sample: Any = None,
) -> M: ...
@overload
def quantize(
    layer: HasConfig,
    weights: Description | None = "lsq",
    activations: Description | None = None,
    *,
    bits: int = 4,
    axis: int | tuple[int, ...] | None = None,
    sample: Any = None,
) -> Any: ...
def quantize(
    layer: Any,
    weights: Description | None = "lsq",
    activations: Description | None = None,
    *,
    bits: int = 4,
    axis: int | tuple[int, ...] | None = None,
    sample: Any = None,
) -> Any:
    """Quantize the weights of a layer, and its inputs, by estimators: it is trained on as it is.

    Examples:
        >>> import torch
        >>> layer = xg.quantize(torch.nn.Linear(8, 3), bits=3)
        >>> len(layer.weight.unique()) <= 8  # 3 bits
        True
        >>> [name for name, _ in layer.named_parameters()]
        ['bias', 'parametrizations.weight.original', 'parametrizations.weight.0.step']

    Weights are the floating-point ones with two axes or more that are not named a bias, those of
    the layers inside too. The numbers that an estimator learns (lsq: the step) are weights of the
    layer, of float32 or more; they start from the weights as they are now: lsq's step at 2 *
    mean|w| / sqrt(Qp) (Esser et al., 2020, arXiv 1902.08153, section 2.1), fake_quantize's ends at
    the lowest and the highest of the weights and 0.

    Args:
        layer: a `torch.nn.Module`, which is changed in place by `torch.nn.utils.parametrize` and
            returned; or a Keras layer, of which a `multigrad.keras.Quantized` is returned.
        weights: the name of an estimator: "lsq", "lsq_plus", "fake_quantize", "dorefa", "ste_sign",
            "ste_ternary", "approx_sign", "swish_sign". Or with options, {"name": "lsq", "bits": 8,
            "signed": False}; or a Function of one tensor of one's own; or None.
        activations: the same of the layer's first argument, "pact" and "ste_heaviside" too.
        bits: of what has bits, where its options have none.
        axis: the axes of a weight along which each index has its own numbers: -1 for the output
            channels of Keras's Dense and Conv, 0 for those of torch's; None: one for all.
        sample: a tensor of typical inputs, from which what `activations` learn starts. None: from a
            standard normal distribution (pact: alpha 3).

    Raises:
        RuleValueError: no such estimator; a layer without such weights, or quantized already.
        RuleTypeError: it is no layer; an option is unknown.
    """
    options: dict[str, Any] = {"bits": bits, "axis": axis, "sample": sample}
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(layer, keras.layers.Layer):
        # By name: the rooms of Keras stand above, and are for its models alone.
        made: Any = import_module("multigrad.keras.quantize").Quantized
        return made(layer, weights, activations, **options)
    for backend in in_use():
        models = backend.models
        if models.quantize is not None and models.is_model is not None and models.is_model(layer):
            return models.quantize(layer, weights, activations, **options)
    refuse_unusable(type(layer))
    raise RuleTypeError(
        f"cannot quantize a {type(layer).__module__}.{type(layer).__qualname__}: expected a "
        "torch.nn.Module or a layer of Keras. In functions, as in jax, quantize weights where they "
        "are used: xg.estimators.lsq(weight, step, bits=4)"
    )
