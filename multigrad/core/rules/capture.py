"""`xg.Capture`: how code becomes a graph."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields

from ...errors import RuleTypeError
from ..support.lazy_modules import of_engine

__all__ = ["Capture"]


@dataclass(frozen=True, slots=True)
class Capture:
    """How code becomes a graph; an option of `register`, `custom_gradient`, `function` and
    `convert`.

    Examples:
        >>> @xg.custom_gradient(capture=xg.Capture(dialect="numpy", native=False))
        ... def doubled(x):
        ...     return x * 2, lambda upstream: upstream * 2
        >>> doubled(np.array([1.0, 2.0]))
        array([2., 4.])

    Attributes:
        native: None: code that cannot be captured runs as it is, on its own framework (a rule with
            one warning). True: it always runs as it is, for side effects or values that change
            outside it. False: TraceError where it cannot be captured.
        dialect: the library whose methods the code means ("torch", "numpy", "xp", ...), where its
            file imports several and it mentions none.
        prove: when it has been captured, run it once as it is on small inputs, forward and
            backward, and compare it with the graph: where they differ the graph is never used.
            `MULTIGRAD_PROVE=0` turns all proofs off.
        copies: whether code that writes into its arguments in place does so on copies of its own,
            on every framework: each call computes what it would if it began by copying them. The
            caller's tensors stay as they are, where a torch class run as it is changes them. A
            tensor given twice is refused, as one copy would not see the other's changes. Of a rule,
            whose graph writes into nothing, it changes nothing.
        rolls: deprecated, and changes nothing: a loop of Python's is recorded turn by turn. For a
            graph whose size does not grow with the steps write `xg.xp.scan`.

    Raises:
        RuleTypeError: `native` is not None, True or False, or no dialect has that name.
    """

    native: bool | None = None
    dialect: str | None = None
    prove: bool = True
    copies: bool = False
    rolls: bool = False

    def __post_init__(self) -> None:
        if self.native not in (None, True, False):
            raise RuleTypeError(f"native is None, True or False, got {self.native!r}")
        _ = self.library  # which refuses a name that is none
        if self.rolls:
            warnings.warn(
                "rolls=True is deprecated since multigrad 1.1 and will be removed in 2.0: loops of "
                "Python's are recorded turn by turn; for a loop as one op write xg.xp.scan",
                DeprecationWarning,
                stacklevel=3,
            )

    @property
    def library(self) -> str:
        """The import name of the dialect's library, "" where none is named."""
        return "" if self.dialect is None else check_dialect(self.dialect)


check_dialect = of_engine(__name__, "check_dialect", "a dialect that is named", RuleTypeError)


def capture_options(
    capture: Capture | None,
    native: bool | None = None,
    dialect: str | None = None,
    prove: bool = True,
) -> Capture:
    """Return the options that a call has given, together or one by one.

    Raises:
        RuleTypeError: they are given both ways, or are no options.
    """
    one_by_one = Capture(native, dialect, prove)
    if capture is None:
        return one_by_one
    if not isinstance(capture, Capture):
        raise RuleTypeError(f"capture is an xg.Capture(...), got {type(capture).__name__}")
    if one_by_one != Capture():
        names = ", ".join(each.name for each in fields(Capture))
        raise RuleTypeError(f"give {names} in capture=xg.Capture(...), or without it, not both")
    return capture
