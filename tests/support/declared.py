"""What a backend's file declares of cells that do not simply work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of one backend that raise an error, or of which something is to be said.

    Attributes:
        transforms: their transforms; none: all.
        kinds: their kinds; none: all.
        text: what the page says of them: of a refusal, words of the error.
        error: the class that they raise, by its name; "": they work.
        absent: whether the transform has no meaning for these kinds.
    """

    transforms: tuple[str, ...]
    kinds: tuple[str, ...]
    text: str
    error: str = ""
    absent: bool = False

    def covers(self, transform: str, kind: str) -> bool:
        is_named = not self.transforms or transform in self.transforms
        return is_named and (not self.kinds or kind in self.kinds)

    def written(self) -> str:
        return f"`{self.error}`: {self.text}" if self.error else self.text


# The kinds whose gradient is not linear in grad_out.
NONLINEAR = (
    "with a reduction",
    "random, with a key",
    "random, without a key",
    "loop by values",
    "composed",
)

# --- what is the same on every backend that has the transform -------------------------------------

SAVED = ("saved and loaded (`xg.save`)",)
EJECTED = ("ejected, without multigrad (`xg.source(..., standalone=True)`)",)
OF_ALL: list[Cells] = [
    Cells(SAVED, ("as it is",), "runs as written (native=True), so it has no graph", "TraceError"),
    Cells(
        SAVED,
        ("scheduled number",),
        "is bound to a number that moves, which a document does not hold",
        "TraceError",
    ),
    Cells(EJECTED, ("as it is",), "runs as written (native=True)", "TraceError"),
    Cells(
        EJECTED,
        ("scheduled number",),
        "what is lowered holds numbers; give it schedule.value",
        "RuleTypeError",
    ),
    Cells(EJECTED, ("loop by values",), "needs ndim of its input in Python", "TraceError"),
    Cells(EJECTED, ("random, without a key",), "", absent=True),
    # A key is a call's; a Function is no rule.
    Cells(("`xg.attach`", "`xg.override`"), ("random, with a key", "own forward"), "", absent=True),
    Cells(
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
