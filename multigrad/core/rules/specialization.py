"""`Specialization`: a rule with its static params fixed.

The other params are run-time numbers: they are arguments of the graph, so that one graph serves
all their values. `triangular(width=1.0)` and `triangular(width=2.0)` are one specialization.

From the top: its numbers and their ranges; its graph; the rule as written, where it cannot be
captured. The last section is `RuleCode`: what has been made of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...errors import TraceError
from ..functions.recipe import Findings, NotCaptured, Variant, warn_native
from ..ir.graph import Graph
from ..support.lazy_modules import NEEDS_ENGINE, provided
from ..support.params import Range
from ..support.threads import SERIALS
from ..trace.lookups import is_read
from ..trace.trace import NeedsConcrete
from .rule_captures import RuleCaptures, asked_of_input, functions_of, made_up

Tensor = Any
Rule = Any  # of rule.py, which imports this module
MOST_CODES = 4096  # of all rules: then the table is emptied


class Slot(NamedTuple):
    """Stands for a run-time value that a part of a composed rule has bound; `name` gives it."""

    name: str


class Specialization:
    """A rule with its static params fixed; it never changes, but for the two memories below.

    Attributes:
        runtime: names of the run-time params, in the order of the values of a rule in force.
        static: the other params, with their values.
        hidden: those of `runtime` that parts of a composed rule have bound, so that no caller sets
            them. Their values are run-time numbers too, as the parts share the graph.
        code: its graphs and lowered code, which equal rules share.
        checked_values: the latest values that were found to be in their ranges; () at first.
        functions_under: by an activation's name, the Function of the rule under it.
    """

    def __init__(
        self,
        rule: Rule,
        runtime: tuple[str, ...],
        static: Mapping[str, Any],
        hidden: frozenset[str],
        code: RuleCode,
    ) -> None:
        self.rule = rule
        self.runtime = runtime
        self.static = dict(static)
        self.hidden = hidden
        self.code = code
        self.id = code.id
        # By whether the rule gets its input.
        self.captures = {has_tin: RuleCaptures(self, has_tin) for has_tin in code.findings}
        self.checked_values: tuple[Any, ...] = ()
        self.functions_under: dict[str, Any] = {}
        # The ranges of run-time params by position, if none depends on another param: a number
        # strictly between the two fits.
        self._ranges: list[tuple[int, float, float, Range]] | None = None
        if not rule.parts and not any(limits.others for limits in rule.own_ranges.values()):
            ranges = [(i, rule.own_ranges.get(name)) for i, name in enumerate(runtime)]
            self._ranges = [(i, *each.inner, each) for i, each in ranges if each is not None]

    @property
    def subject(self) -> str:
        return f"rule {self.rule.name!r}"

    # --- its numbers: `values` are those of `runtime`, in that order ------------------------------
    def check_numbers(self, values: tuple[Any, ...]) -> None:
        """Check values against their ranges, unless they passed the last check.

        Raises:
            RuleValueError: one is outside its range.
        """
        if values == self.checked_values:
            return
        self.check_anew(values)
        self.checked_values = values

    def check_anew(self, values: tuple[Any, ...]) -> None:
        """Check values against their ranges; compilers may trace it."""
        fits = self._ranges is not None
        for i, low, high, limits in self._ranges or ():  # a loop: each new number comes here
            value = values[i]
            if not (type(value) is float and low < value < high) and not limits.holds(value):
                fits = False
        if not fits:
            rule, params = self.fill_bound(self.name_values(values))
            # The parts of a series have defaults of their own; else all values are given.
            rule._check_ranges(params, with_defaults=bool(rule.parts))

    def name_values(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return all params by name: the static ones, and these values of the run-time ones."""
        return {**self.static, **dict(zip(self.runtime, values, strict=True))}

    def params(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return the params that a caller may set, by name."""
        return self.fill_bound(self.name_values(values))[1]

    def fill_bound(self, params: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
        """Return the rule with the hidden params put into its parts, and the other params."""
        visible = {name: value for name, value in params.items() if name not in self.hidden}
        return (_fill(self.rule, params) if self.hidden else self.rule), visible

    # --- its graph --------------------------------------------------------------------------------
    def graph(self, has_tin: bool, facts: Mapping[str, Any], leaves: Sequence[Any] = ()) -> Graph:
        """Return the rule's graph under these facts; see `variant`."""
        return self.variant(has_tin, facts, leaves).graphs.backward

    def variant(
        self, has_tin: bool, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
    ) -> Variant:
        """Return the rule's variant under these facts, proven.

        Args:
            leaves: a tensor and the run-time params, on which it is proven, for the tensor's dtype
                and library; none: on a tensor that is made up.

        Raises:
            NeedsConcrete: the rule needs other facts, which are now among those of its captures.
            TraceError: it cannot be captured, or is disproved.
        """
        captures = self.captures[has_tin]
        layout = captures.lay_out(leaves[0] if leaves else made_up(facts))
        try:
            return captures.for_known(layout, facts, leaves)
        except NeedsConcrete as need:
            missing = asked_of_input(captures.facts) - facts.keys()
            raise NeedsConcrete(*sorted(missing), noted=False) from need
        except NotCaptured as error:
            raise error.error from error.__cause__

    # --- the rule as written, where it cannot be captured -----------------------------------------
    def give_up(self, error: TraceError) -> None:
        """Let the rule run as written, and warn once, at the line that cannot be captured.

        Raises `error` if it was registered with native=False, or is over shards.
        """
        if self.rule.native is False or self.rule.shards is not None:
            raise error
        if self.code.uncapturable is None:
            self.code.uncapturable = error.to_keep()
            warn_native(functions_of(self.rule), error)


def _fill(rule: Rule, values: Mapping[str, Any]) -> Rule:
    bound = {k: values[v.name] if isinstance(v, Slot) else v for k, v in rule.bound.items()}
    return rule.copy(bound=bound, parts=tuple(_fill(part, values) for part in rule.parts))


@provided
def run_as_written(
    specialization: Specialization,
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    values: tuple[Any, ...],
) -> Tensor:
    """Call a rule's function on tensors and check what it returns."""
    error = specialization.code.uncapturable
    reason = f"{error}; it" if error is not None else specialization.subject
    raise TraceError(f"{reason} runs as written, which {NEEDS_ENGINE}")


class RuleCode:
    """The captured graphs and the lowered code of a rule with its static params fixed.

    Equal rules share it, and their Specializations fill it at the first calls. What the rule's code
    reads besides its inputs is among the facts of each variant: nothing else makes one out of date.

    Attributes:
        id: its name in tokens, different for each.
        finalizers: drop it with the functions and objects that the rule is made of.
        findings: what captures of it have found, with its input and without.
        entries: the rule as code of backends, applied alone: by graph, so that equal ones are
            emitted once, and by facts; None: it runs as written.
        draws: whether a capture of it was random.
        libraries: those of the tensors of calls, where the graph depends on it; grows.
        uncapturable: why it runs as written, without the frames that led there.
    """

    __slots__ = (
        "draws", "entries", "finalizers", "findings", "id", "libraries", "uncapturable",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.finalizers: list[weakref.finalize[..., Any]] = []
        self.id = f"{name}#{next(SERIALS)}"
        self.findings = {True: Findings(), False: Findings()}
        self.entries: dict[Any, Any] = {}
        self.draws = False
        self.libraries: set[str] = set()
        self.uncapturable: TraceError | None = None

    @property
    def reads(self) -> frozenset[str]:
        """What the rule's code has read besides its inputs (`lookups.py`)."""
        return frozenset(filter(is_read, self._all_facts))

    @property
    def facts(self) -> frozenset[str]:
        """What Python needed to know of the input ("ndim", "dtype", ...)."""
        return asked_of_input(self._all_facts)

    @property
    def _all_facts(self) -> frozenset[str]:
        return self.findings[True].facts | self.findings[False].facts


# It lives as long as the functions that the rule is made of, even if no rule is held; and it refers
# to none of them, or what they close over would live forever.
_codes: dict[Any, RuleCode] = {}


def code_of(name: str, key: Any, owners: Iterable[Any]) -> RuleCode:
    """Return the code made of a rule; it is dropped with the first of its owners to go.

    Args:
        key: equal for equal rules; it keeps no owner alive.
        owners: the functions and objects of which the rule is made.
    """
    code = _codes.get(key)
    if code is None:
        if len(_codes) >= MOST_CODES:
            for old_key in tuple(_codes):
                _drop(old_key)
        new_code = RuleCode(name)
        code = _codes.setdefault(key, new_code)
        for owner in owners if code is new_code else ():
            with suppress(TypeError):  # Python offers no weak reference to it
                finalizer = weakref.finalize(owner, _drop, key)
                finalizer.atexit = False
                code.finalizers.append(finalizer)
    return code


def _drop(key: Any) -> None:
    code = _codes.pop(key, None)
    for finalizer in () if code is None else code.finalizers:
        finalizer.detach()  # the other owners may live on
