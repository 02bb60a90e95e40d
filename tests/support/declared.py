"""What a backend's file declares of cells that do not simply work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of one backend.

    Attributes:
        transforms: their transforms; none: all.
        kinds: their kinds; none: all.
        text: what the page says of them: of a refusal, words of the error.
    """

    transforms: tuple[str, ...]
    kinds: tuple[str, ...]
    text: str

    def covers(self, transform: str, kind: str) -> bool:
        """Return whether a cell is one of these."""
        is_named = not self.transforms or transform in self.transforms
        return is_named and (not self.kinds or kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Refused(Cells):
    """Cells that raise an error: its class by name, with words of its message in `text`."""

    error: str = ""

    def written(self) -> str:
        """Return the line below the table."""
        return f"`{self.error}`: {self.text}"


@dataclass(frozen=True, slots=True)
class Note(Cells):
    """Cells that work, and of which something is to be said; `absent`: that have no meaning."""

    absent: bool = False

    def written(self) -> str:
        """Return the line below the table."""
        return self.text


# --- what is the same on every backend that has the transform -------------------------------------

SAVED = ("saved and loaded (`xg.save`)",)
EJECTED = ("ejected, without multigrad (`xg.source(..., standalone=True)`)",)
OF_ALL: list[Refused | Note] = [
    Refused(
        SAVED, ("as it is",), "runs as written (native=True), so it has no graph", "TraceError"
    ),
    Refused(
        SAVED,
        ("scheduled number",),
        "is bound to a number that moves, which a document does not hold",
        "TraceError",
    ),
    Refused(EJECTED, ("as it is",), "runs as written (native=True)", "TraceError"),
    Refused(
        EJECTED,
        ("scheduled number",),
        "what is lowered holds numbers; give it schedule.value",
        "RuleTypeError",
    ),
    Refused(EJECTED, ("loop by values",), "needs ndim of its input in Python", "TraceError"),
    Note(EJECTED, ("random, without a key",), "", absent=True),
    # A key is a call's; a Function is no rule.
    Note(("`xg.attach`", "`xg.override`"), ("random, with a key", "own forward"), "", absent=True),
    Note(
        (
            "`xg.apply_to_gradients`",
            '`use(scope="params")`, by hooks',
            "gradients of weights (`multigrad.keras.apply_to_gradients`)",
        ),
        ("own forward", "rule of a layer"),
        "",
        absent=True,
    ),
]
