"""`xg.attach`: rules on an existing model, and the handle that removes them; `xg.quantize`: layers
with quantized weights, inputs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from importlib import import_module
from typing import Any, Protocol, Self, TypeAlias, TypeVar, overload

from ..core.backend.discovery import in_use, refuse_unusable
from ..core.rules.rule import Rule
from ..core.support.params import P, R
from ..core.support.threads import make_lock
from ..engine.functions.calls.parameters import told_arguments
from ..engine.functions.importers import framework_of
from ..errors import RuleTypeError, RuleValueError
from ..estimators.quantizers import Description
from .attribution.composites import Composite
from .override import Overridden, override
from .selectors import Row

__all__ = ["attach", "quantize"]

Rules: TypeAlias = Mapping[Any, str | Rule | Callable[..., Any]] | Composite


class HasModules(Protocol):
    """A torch model, as far as type checkers know it."""

    def named_modules(self) -> Any: ...


class HasConfig(Protocol):
    """A Keras model or layer, as far as type checkers know it."""

    def get_config(self) -> Any: ...


@overload
def attach(model: HasModules | HasConfig, rules: Rules) -> Attachment: ...
@overload
def attach(model: Callable[P, R], rules: Rules) -> Overridden[P, R]: ...
@told_arguments
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
        RuleValueError: a selector matches nothing, or a layer is meant by two rules. If one is of
            an earlier call, the error's `handle` is that call's, for those who did not keep it.
        RuleError: a rule is unknown, or needs a param.
        RuleTypeError: it is neither such a model nor a function.
    """
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Operation):
        # By name: the rooms of Keras are above this one, and only its models need them.
        return import_module("multigrad.keras.attachment").attach(model, rules)
    # Only imported frameworks: there are no models of others.
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
    advice = ". The model comes first: xg.attach(model, rules)"
    raise RuleTypeError(
        f"cannot attach rules to a {type(model).__module__}.{type(model).__qualname__}: expected a "
        "torch.nn.Module, a Keras model or a function of tensors, as a model of jax is one"
        f"{advice if isinstance(model, Mapping | Composite) else ''}"
    )


# --- quantized layers -----------------------------------------------------------------------------
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
@told_arguments
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
        activations: the same of the layer's first argument, "pact" and "ste_heaviside" too; not for
            a network, whose layers are then quantized one by one.
        bits: the bit width, unless a description gives one.
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
        # By name: the rooms of Keras are above this one, and only its layers need them.
        layer_class: Any = import_module("multigrad.keras.quantize").Quantized
        return layer_class(layer, weights, activations, **options)
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


# --- the handle of rules on a model ---------------------------------------------------------------
HEADER = ("name", "kind", "rule", "selector")
# Held while rules are put on a model or taken off: nothing changes between a check and what it is
# for. Plans are made without it, as selectors run a user's code.
CHANGING = make_lock()


def nothing() -> None: ...


class Attachment:
    """Rules on a model. As a context manager it removes them at the end; it prints as a table.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> handle = xg.attach(model, {torch.nn.ReLU: "guided"})
        >>> [(row.name, row.rule) for row in handle.rows]
        [('1', 'guided')]
        >>> handle.detach()
        >>> handle.is_attached
        False

    Attributes:
        rows: what was changed, in the model's order; of a composite, once the model was called,
            also the operations in its code. Of rules that read weights, those without a rule, too.
        is_attached: whether the rules act.
    """

    def __init__(
        self,
        rows: Callable[[], Iterable[Row]],
        put: Callable[[Attachment], None],
        undo: Callable[[], None],
        renew: Callable[[], None] = nothing,
    ) -> None:
        self._rows = rows
        self._undo: Callable[[], None] | None = undo
        # Compiles anew what was compiled before a change, which may run a user's code.
        self._renew = renew
        self._is_entered = False
        try:
            with CHANGING:
                put(self)
            renew()
        except BaseException:
            # All or none: it takes off as many as are there.
            self.detach()
            raise

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._rows())

    @property
    def is_attached(self) -> bool:
        """Whether the rules act.

        Examples:
            >>> import torch
            >>> with xg.attach(torch.nn.Sequential(torch.nn.ReLU()), {"relu": "guided"}) as handle:
            ...     print(handle.is_attached)
            True
            >>> handle.is_attached
            False
        """
        return self._undo is not None

    def detach(self) -> None:
        """Remove the rules, so that the model is as before. A second call changes nothing.

        Examples:
            >>> import torch
            >>> model = torch.nn.Sequential(torch.nn.ReLU())
            >>> handle = xg.attach(model, {torch.nn.ReLU: "guided"})
            >>> handle.detach()
            >>> [row.name for row in handle.rows]  # what it had changed
            ['0']
        """
        undo = self._undo
        if undo is not None:
            with CHANGING:
                undo()
            self._renew()
            self._undo = None  # last: after a failure another call takes off the rest

    def __enter__(self) -> Self:
        with CHANGING:
            is_entered, self._is_entered = self._is_entered, True
        if is_entered or self._undo is None:
            words = "is entered already" if self._undo else "was detached: its rules act no more"
            raise RuleValueError(
                f"this handle {words}. Call attach again, `with xg.attach(model, rules):`, for "
                "each block"
            )
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return table([HEADER, *map(astuple, self.rows)]) + ("" if self._undo else "\n(detached)")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in columns, the first as their heads."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]])
