"""The operations that a model calls under a composite: those with a rule, and the gaps between.

Relevance adds up only if a rule shares it out wherever an operation's own gradient would multiply
it, and a product in code, as `h @ self.fc.weight.T`, belongs to no layer. The first eager call of
the whole model with a gradient for its input notes both, for the handle's table and a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from multigrad.errors import ActsNowhereWarning
from multigrad.models.attribution.composites import Composite, entry_of
from multigrad.models.selectors import (
    GAP,
    Row,
    empty_message,
    multiplies,
    not_called,
    shares_relevance,
    warn_of_gaps,
)

from ..dynamo import is_compiling
from ..state import transforms_active
from .call_rule import CallRule, WeightRule, find_activations
from .layer_kinds import OPERATIONS
from .layer_rule import LayerInterceptor
from .operation_names import name_operation
from .override import OperationMode

Tensor: TypeAlias = torch.Tensor
MOST_NODES = 32  # of autograd, behind a tensor that is computed from parameters alone
ADVICE = "A product has a rule as a layer, F.linear or a convolution"


class CompositeMode(OperationMode):
    """Applies a composite's rules to operations, and notes gaps.

    Attributes:
        kinds: those of the model's layers, for messages.
        layers: the table's rows for layers, each with what acts on it and its identity.
        rows_of_calls: of the table, by operation and what it is called with.
        notes_gaps: whether the composite shares out relevance, which gaps would multiply.
        is_noting: whether a call of the whole runs that has a gradient for its input.
        first: the key of what acts on the layer that was called first; "" before a call.
    """

    def __init__(
        self, composite: Composite, rules: Mapping[str, CallRule], kinds: Iterable[str | None]
    ) -> None:
        super().__init__(rules)
        self.composite: Composite = composite
        self.kinds = sorted({kind for kind in kinds if kind is not None})
        self.layers: Sequence[RuledRow] = ()
        self.rows_of_calls: dict[tuple[str, str], Row] = {}
        self.notes_gaps = shares_relevance(composite)
        self.is_noting = False
        self.first = ""

    def start(self, arguments: Any) -> None:
        self.first = ""  # calls of a part alone may have been before
        tensors = [x for x in pytree.tree_leaves(arguments) if isinstance(x, Tensor)]
        self.is_noting = not transforms_active() and any(x.requires_grad for x in tensors)

    def note_hit(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().note_hit(name, args, kwargs)
        if not self.is_noting or is_compiling():
            return
        row, rule = OPERATIONS[name], self.rules[name]
        # Calls within a layer that has a rule itself are on constants.
        if not any(x.requires_grad for _, x, _ in find_activations(name, args, kwargs)):
            return
        read = None if "out" in kwargs else row.read
        if not isinstance(rule, WeightRule) or (read and read(*args, **kwargs)):
            self.warn_of_first(name, row.kind)
            self.rows_of_calls[name, ""] = Row(name, "operation", rule.name, row.kind)
        else:
            self.note_gap(name, args, kwargs)

    def warn_of_first(self, name: str, kind: str) -> None:
        """Warn if a call in code comes before the layers of which the first has its own rule."""
        first = self.composite.first
        layers = [each for each in self.layers if entry_of(first, each[0].selector) is not None]
        is_later = any(key in acting.called for _, acting, key in layers)
        if entry_of(first, kind) is None or is_later or (name, "") in self.rows_of_calls:
            return
        warnings.warn(
            f"composite {self.composite.name!r} has a rule of its own for the first {kind}, and "
            f"the first one here is operation {name!r} in code, which has that of the others: "
            "write it as a layer",
            ActsNowhereWarning,
            stacklevel=4,
        )

    def note_call(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        super().note_call(func, args, kwargs, out)
        results = pytree.tree_leaves(out)
        if self.is_noting and any(getattr(each, "requires_grad", False) for each in results):
            is_reversed = getattr(func, "__name__", "").strip("_") == "rsub"
            self.note_gap(name_operation(func), args[::-1] if is_reversed else args, kwargs)

    def note_gap(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note an operation without a rule if it may multiply relevance."""
        if not self.notes_gaps or not multiplies(name, activations=2):
            return
        tensors = [x for x in pytree.tree_leaves((args, dict(kwargs))) if isinstance(x, Tensor)]
        parameters = {id(x): parameter_of(x) for x in tensors}
        activations = [x for x in tensors if x.requires_grad and parameters[id(x)] is None]
        negates = name == "sub" and bool(activations) and activations[0] is not (*args, None)[0]
        if not multiplies(name, len(activations), negates):
            return
        names = [
            name
            for root in self.roots()
            for name, each in root.named_parameters()
            if any(each is parameter for parameter in parameters.values())
        ]
        words = ", ".join(names) or ("an activation", "activations")[len(activations) > 1]
        self.rows_of_calls[name, words] = Row(name, "operation", GAP, words)

    def say_missing(self) -> str:
        self.is_noting = False
        has_met = any(acting.called or acting.was_traced for _, acting, _ in self.layers)
        if not has_met and not self.count_hits():
            return empty_message(
                self.composite, {*self.kinds, *(self.seen or ())} - {"", "get", "set"}
            )
        if self.rows_of_calls and self.seen is not None:
            self.seen = None
            warn_of_gaps(self.composite, self.rows_of_calls.values(), ADVICE, stacklevel=7)
        return ""


def parameter_of(x: Tensor) -> nn.Parameter | None:
    """Return a parameter if a tensor is one, or is computed from parameters alone."""
    for tensor in (x, x._base):
        if isinstance(tensor, nn.Parameter):
            return tensor
    nodes, parameter = [x.grad_fn], None
    for _ in range(MOST_NODES):
        if not nodes:
            return parameter
        node = nodes.pop()
        variable = getattr(node, "variable", parameter)
        if variable is not None and not isinstance(variable, nn.Parameter):
            return None
        parameter = variable
        nodes += [each for each, _ in getattr(node, "next_functions", ()) if each is not None]
    return None


# --- the handle's table ---------------------------------------------------------------------------
# A row for a layer, what acts on it, and the identity of its module.
RuledRow: TypeAlias = tuple[Row, Any, int]


def rows_now(layers: Sequence[RuledRow], others: Callable[[], Iterable[Row]]) -> list[Row]:
    """Return the rows of layers and others; a layer that no call has reached so far says so."""
    actings = [acting for _, acting, _ in layers if isinstance(acting, LayerInterceptor)]
    is_run = any(each.called for each in actings) and not any(each.was_traced for each in actings)
    rows: list[Row] = []
    for row, acting, key in layers:
        is_layer = isinstance(acting, LayerInterceptor)
        now = acting.row_now(row, key) if is_layer else row
        if now is not None:
            rows.append(
                not_called(now) if is_run and is_layer and key not in acting.called else now
            )
    return [*rows, *others()]
