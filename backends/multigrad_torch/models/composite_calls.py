"""The operations that a model calls under a composite: those with a rule, and the gaps between."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from multigrad.errors import ActsNowhereWarning
from multigrad.models.attribution.composites import Composite, entry_of
from multigrad.models.selectors import Row, empty_message, not_called

from .call_rule import CallRule
from .layer_kinds import OPERATIONS
from .layer_rule import LayerInterceptor
from .override import OperationMode


class CompositeMode(OperationMode):
    """Applies a composite's rules to operations, and notes those that have one, too.

    Attributes:
        kinds: those of the model's layers, for messages.
        layers: the table's rows for layers, each with what acts on it and its identity.
        first: the key of what acts on the layer that was called first; "" before a call.
    """

    def __init__(
        self, composite: Composite, rules: Mapping[str, CallRule], kinds: Iterable[str | None]
    ) -> None:
        super().__init__(rules, given=composite)
        self.composite: Composite = composite
        self.kinds = sorted({kind for kind in kinds if kind is not None})
        self.layers: Sequence[RuledRow] = ()
        self.first = ""

    def start(self, arguments: Any) -> None:
        self.first = ""  # calls of a part alone may have been before
        super().start(arguments)

    def note_ruled(self, name: str, rule: CallRule) -> None:
        kind = OPERATIONS[name].kind
        self.warn_of_first(name, kind)
        self.rows_of_calls[name, ""] = Row(name, "operation", rule.name, kind)

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
            stacklevel=5,
        )

    def say_missing(self) -> str:
        self.is_noting = False
        has_met = any(acting.called or acting.was_traced for _, acting, _ in self.layers)
        if not has_met and not self.count_hits():
            return empty_message(
                self.composite, {*self.kinds, *(self.seen or ())} - {"", "get", "set"}
            )
        if self.rows_of_calls and self.seen is not None:
            self.seen = None
            self.warn()
        return ""


# --- the handle's table ---------------------------------------------------------------------------
# A row for a layer, what acts on it, and the identity of its module.
RuledRow: TypeAlias = tuple[Row, Any, int]


def rows_now(layers: Sequence[RuledRow], others: Iterable[Row], mode: OperationMode) -> list[Row]:
    """Return the rows of layers, others and calls; a layer that no call has reached says so."""
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
    return [*rows, *others, *mode.rows_of_calls.values()]
