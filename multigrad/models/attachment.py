"""`Attachment`, the handle that `attach` returns: a table of what was changed, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from ..errors import RuleValueError
from ..graph.support.class_bases import InNotebooks
from ..rules.model.rule import Rule

if TYPE_CHECKING:
    from typing_extensions import Self

HEADER = ("name", "kind", "rule", "selector")


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was changed.

    Examples:
        >>> import torch
        >>> handle = xg.attach(torch.nn.Sequential(torch.nn.ReLU()), {"relu": "guided"})
        >>> handle.rows[0]
        Row(name='relu', kind='operation', rule='guided', selector='relu')

    Attributes:
        name: a layer's name, or an operation's.
        kind: the layer's class, or "operation".
        rule: the rule that acts there now.
        selector: what chose it.
    """

    name: str
    kind: str
    rule: str
    selector: str


class Attachment(InNotebooks):
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
        rows: what was changed, in the model's order.
        is_attached: whether the rules act.
    """

    def __init__(
        self, rows: Sequence[Row], put: Callable[[], None], undo: Callable[[], None]
    ) -> None:
        self.rows = tuple(rows)
        self._undo: Callable[[], None] | None = undo
        self._is_entered = False
        try:
            put()
        except BaseException:
            # All or none: it takes off as many as are there.
            undo()
            raise

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
        if self._undo is not None:
            self._undo()
            self._undo = None  # last: after a failure another call takes off the rest

    def __enter__(self) -> Self:
        if self._is_entered or self._undo is None:
            was = "is entered already" if self._undo else "was detached: its rules act no more"
            raise RuleValueError(
                f"this handle {was}. Call attach again, `with xg.attach(model, rules):`, for each "
                "block"
            )
        self._is_entered = True
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


def named(rule: Any) -> str:
    """Return a rule's name for a table, with its bound numbers."""
    if isinstance(rule, str):
        return rule
    if isinstance(rule, Rule):
        return rule._words
    name = getattr(rule, "name", None)
    said = repr(rule)  # the repr of a layer's rule has its numbers
    return said if name is None or said.startswith(f"{name}(") else name
