"""`Specialization`: a rule with its static params fixed.

The other params are run-time numbers: they are arguments of the graph, so that one graph serves
all their values. `triangular(width=1.0)` and `triangular(width=2.0)` are one specialization.

A rule is the backward of a function that returns its input (`recipe_of_rule`): it is captured,
proven and kept as one, and its graph is the backward's, which serves under every activation.

From the top: its numbers and their ranges; its graph; the rule as written, where it cannot be
captured; the recipe. The last section is `RuleCode`: what has been made of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from ...errors import GradientError, RuleError, TraceError
from ..backend.contract import Backend
from ..functions.arguments import Layout, Leaf, lay_out_flat
from ..functions.capture_errors import NotCaptured, warn_native
from ..functions.captures import Captures, prove
from ..functions.plain import call_plainly
from ..functions.recipe import (
    KEY,
    Forms,
    GraphSource,
    Options,
    Recipe,
    Recorded,
    Variant,
    library_of,
)
from ..ir.graph import Graph
from ..ir.op import dtype_name, is_number
from ..ir.questions import crossing, note
from ..lowering.derivatives import draw_in, replay
from ..lowering.function_graph import FunctionGraph
from ..lowering.lower import emit_rule_once
from ..passes.facts import GIVEN, LIBRARY
from ..passes.simplify import without_memory
from ..support.lazy_modules import NEEDS_ENGINE, of_engine, provided
from ..support.params import Range
from ..support.threads import SERIALS, build_once
from ..trace.lookups import is_read, now
from ..trace.source import TENSORS, Reading
from ..trace.trace import NeedsConcrete, Trace, Value, setting

Tensor = Any
Rule = Any  # of rule.py, which imports this module
SHAPES = ((), (5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 3, 2))  # by rank, no two axes alike
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
        self.captures = {
            has_tin: Captures(
                recipe_of_rule(
                    rule, runtime, self.static, hidden, emitted=code.entries, has_tin=has_tin
                ),
                rule.prove,
                rule.__module__,
                forms,
            )
            for has_tin, forms in code.forms.items()
        }
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
    def has_checked(self, values: Sequence[Any]) -> bool:
        """Return whether these values are those that passed the last check."""
        pairs = zip(self.checked_values, values, strict=False)
        matches = [a is b or (type(a) is type(b) is float and a == b) for a, b in pairs]
        return len(self.checked_values) == len(values) and all(matches)

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

    def name_values(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return all params by name: the static ones, and these values of the run-time ones."""
        return {**self.static, **dict(zip(self.runtime, values, strict=True))}

    def params(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return the params that a caller may set, by name."""
        return self.fill_bound(self.name_values(values))[1]

    def fill_bound(self, params: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
        """Return the rule with the hidden params put into its parts, and the other params."""
        return fill_bound(self.rule, self.hidden, params)

    # --- its graph --------------------------------------------------------------------------------
    def graph(self, has_tin: bool, facts: Mapping[str, Any], leaves: Sequence[Any] = ()) -> Graph:
        """Return the rule's graph under these facts; see `known`."""
        return self.form(self.known(has_tin, facts, leaves), has_tin).graphs.backward

    def form(self, variant: Variant, has_tin: bool) -> Variant:
        """Return the rule's captured form, whose graph takes only the rule's own inputs.

        Raises:
            NeedsConcrete: other facts are needed, which `captures` has now, too.
            TraceError: the graph leaves out what the rule's code does.
        """
        try:
            form = build_once(variant.lowered, "alone", partial(self._form, variant, has_tin))
        except NeedsConcrete as need:  # what shards are of the whole array
            self.captures[has_tin].facts |= frozenset(need.facts)
            raise
        return form.laid_out(variant.layout)

    def _form(self, variant: Variant, has_tin: bool) -> Variant:
        recipe = self.captures[has_tin].recipe
        if not variant.is_whole and (problem := find_omission(recipe, variant)):
            raise TraceError(f"{self.subject}: {problem}")
        graph, origin = bare_graph(variant.graphs, has_tin), variant.graphs.forward.origin
        self.code.draws |= graph.input("key") is not None
        self.code.libraries |= {variant.facts[LIBRARY]} if variant.facts.get(LIBRARY) else set()
        if self.rule.shards is not None:
            graph = over_shards(graph, self.rule.shards, variant.facts)
        # A new graph says the same about the proof.
        graphs = replace(variant.graphs, backward=replace(graph, origin=origin))
        return replace(variant, graphs=graphs, lowered={})

    def known(
        self,
        has_tin: bool,
        facts: Mapping[str, Any],
        leaves: Sequence[Any] = (),
        *,
        is_call: bool = False,
    ) -> Variant:
        """Return the rule as it is captured under these facts, once, and proven.

        Args:
            leaves: a tensor and the run-time params, on which it is proven, for the tensor's dtype
                and library; none: on a tensor that is made up.
            is_call: it is proven on these leaves even if that is proven.

        Raises:
            NeedsConcrete: the rule needs other facts, which are now in `code.facts`, too.
            TraceError: it cannot be captured, or is disproved.
        """
        captures, sample = self.captures[has_tin], self._sample(facts, *leaves)
        is_made_up = isinstance(sample[0], MadeUp)
        layout = self.lay_out(sample[0], has_tin)
        try:
            variant, given = captures.for_known(layout, facts, () if is_made_up else sample)
            if not (is_made_up and variant.proofs):  # of calls, which say more
                variant = captures.proven(variant, layout, sample, given)
            if is_call:
                prove(captures.recipe, variant, sample, is_call=True)
        except NeedsConcrete as need:
            missing = asked_of_input(captures.facts) - facts.keys()
            raise NeedsConcrete(*sorted(missing), noted=False) from need
        except NotCaptured as error:
            raise error.error from error.__cause__
        return variant

    def lay_out(self, x: Tensor, has_tin: bool) -> Layout:
        """Return the layout of a call with a tensor like this; its params are numbers even if they
        are given as tensors.
        """
        dtype = x.node.type.dtype if isinstance(x, Value) else dtype_name(x.dtype)
        rows = [Leaf("tensor", "tin" if has_tin else "grad_out", "tin", dtype)]
        rows += [Leaf("number", name, name) for name in self.runtime]
        return lay_out_flat(rows)

    def _sample(self, facts: Mapping[str, Any], x: Tensor = None, *values: Any) -> tuple[Any, ...]:
        # Numbers of the capture come first, then those of the call, then the defaults.
        numbers = []
        for name, value in zip_longest(self.runtime, values):
            number = facts.get(f"param:{name}", value)
            if not isinstance(number, int | float):
                param = self.rule.signature.params.get(name)
                number = None if param is None else param.default
            # 0.75 is no edge of a common formula, as 0 and 1 are.
            numbers.append(float(number) if isinstance(number, int | float) else 0.75)
        return made_up(facts) if x is None else x, *numbers

    def record(self, grad_out: Value, tin: Value | None, values: Sequence[Any]) -> Value:
        """Record the rule in the capture to which its tensors belong."""
        trace, has_tin = grad_out.trace, tin is not None
        x, captures = grad_out if tin is None else tin, self.captures[has_tin]
        try:
            with crossing(NeedsConcrete):
                variant = captures.for_symbols(trace, self.lay_out(x, has_tin), (x, *values))
            if not variant.proofs:  # which may read its names as another library's
                sample = self._sample(variant.facts)
                layout = self.lay_out(sample[0], has_tin)
                variant = captures.proven(variant, layout, sample, variant.facts)
        except NotCaptured as error:
            raise note(error.error) from error.__cause__
        (graph,), keys = draw_in(trace, self.form(variant, has_tin).graphs.backward)
        inputs = {"grad_out": grad_out, "tin": tin, **dict(zip(self.runtime, values, strict=True))}
        return replay(trace, graph, {**inputs, **keys})[0]

    def latest_graph(self) -> Graph | None:
        variant = next(reversed(self.captures[True].variants.values()), None)
        return None if variant is None else self.form(variant, True).graphs.backward

    def without_call(self, facts: Container[str]) -> dict[str, str]:
        """Return what takes the place of a call for those of these facts that only calls tell: the
        library of the tensors with which it was called, where it is one.
        """
        libraries = self.code.libraries
        name = next(iter(libraries)) if len(libraries) == 1 else ""
        return {LIBRARY: name} if LIBRARY in facts else {}

    # --- the rule as written, where it cannot be captured -----------------------------------------
    def give_up(self, error: TraceError) -> None:
        """Let the rule run as written, and warn once, at the line that cannot be captured.

        Raises `error` if it was registered with native=False, or is over shards.
        """
        if self.rule.native is False or self.rule.shards is not None:
            raise error
        if self.code.uncapturable is None:
            self.code.uncapturable = error.to_keep()
            warn_native(_functions_of(self.rule), error)


# --- a rule as the backward of a function ---------------------------------------------------------
def recipe_of_rule(
    rule: Rule,
    runtime: Sequence[str],
    static: Mapping[str, Any],
    hidden: frozenset[str],
    emitted: dict[Any, Any],
    has_tin: bool,
) -> Recipe:
    """Return the recipe of a function that returns its input, whose backward is a rule.

    Its arguments are the tensor and the run-time params. A composed rule is made of the graphs of
    its parts, each of which is proven alone.

    Args:
        emitted: the functions that its graph was emitted as.
        has_tin: whether the rule gets the tensor as `tin`.
    """
    functions = () if rule.function is None else (rule.function,)
    options = Options(native=rule.native)

    def apply(call: Callable[..., Any], args: tuple[Any, ...], grad_out: Any) -> tuple[Any, ...]:
        tin, *values = args
        params = {**static, **dict(zip(runtime, values, strict=True))}
        filled, visible = fill_bound(rule, hidden, params)
        returned = call(filled, grad_out, tin if has_tin else None, visible)
        return (gradient_of(rule.name, returned), *[None] * (len(args) - 1))

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        def pull(grad_out: Any, ctx: Any = None) -> tuple[Any, ...]:
            def call(rule: Rule, *inputs: Any) -> Any:
                return rule._run_native(ctx, *inputs)

            return apply(call, args, grad_out)

        return Recorded(args[0], pull, takes_ctx=True)

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        trace.source.numbers.update(filter(is_number, static.values()))

        def call(rule: Rule, *inputs: Any) -> Any:
            # The methods of a composed rule's parts may be those of the call's tensors.
            reading = trace.reading if functions else Reading((), TENSORS)
            with setting(trace, reading=reading):
                return record_code(rule, trace, *inputs)

        return Recorded(args[0], partial(apply, call, args), first_order=rule.first_order)

    def lower(graphs: FunctionGraph, backend: Backend) -> Callable[[Tensor, Sequence[Any]], Tensor]:
        function = emit_rule_once(bare_graph(graphs, has_tin), backend, emitted)
        key = (KEY,) if graphs.is_random else ()

        def pull(grad_out: Tensor, leaves: Sequence[Any]) -> Tensor:
            tin, *values = leaves
            return function(grad_out, *((tin,) if has_tin else ()), *values, *key)

        return pull

    def prove_parts(
        recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool
    ) -> str:
        x, *values = leaves
        params = {**static, **dict(zip(runtime, values, strict=True))}
        for part, given in parts_of(*fill_bound(rule, hidden, params)):
            bound = part.copy(ranges={}, bound={}).bound_rule(given)
            numbers = {f"param:{name}": value for name, value in bound.numbers.items()}
            known = {**variant.facts, **numbers}
            needed = asked_of_input(bound.specialization.captures[has_tin].facts)
            facts = {fact: known[fact] for fact in needed & known.keys()}
            bound.specialization.known(has_tin, facts, (x, *bound.values), is_call=is_call)
        return ""

    return Recipe(
        rule.name,
        run,
        record,
        functions=() if hasattr(rule.function, "record") else functions,  # of a document
        written_in=rule.library or partial(library_of, tuple(_functions_of(rule))[:1], ""),
        subject=f"rule {rule.name!r}",
        noun="rule",
        options=options,
        graphs=GraphSource(prove=None if functions else prove_parts, lower=lower),
    )


def record_code(
    rule: Rule, trace: Trace, grad_out: Value, tin: Value | None, params: Mapping[str, Any]
) -> Any:
    """Record what a rule's code does, or what its parts do, in a capture."""
    if rule.function is None:
        for part, given in parts_of(rule, params):
            if part.shards is not None:
                raise RuleError(
                    f"rule {part.name!r} is used {part.shards} within {rule.name!r}: say it of "
                    "the composed rule, whose parts act on one array"
                )
            grad_out = record_rule(part, grad_out, tin, given)
        return grad_out
    # Schedules among the values are read now.
    values = {name: now(value) for name, value in {**params, **rule.bound}.items()}
    if rule.native is True:
        raise TraceError(f"rule {rule.name!r} runs as written (native=True)")
    if hasattr(rule.function, "record"):  # of a document: no source to prepare
        return rule.function.record(trace, grad_out, tin, values)
    if trace.source.is_plain:
        return call_plainly(rule.function, trace, None, grad_out, tin, **values)
    return run_rule(rule.library, rule.function, trace, None, grad_out, tin, **values)


def record_rule(rule: Rule, grad_out: Value, tin: Value | None, params: Mapping[str, Any]) -> Any:
    """Record a rule in the capture to which its tensors belong; params may be values there."""
    symbols = {name: value for name, value in params.items() if isinstance(value, Value)}
    examples = dict.fromkeys(symbols, 1.0)  # any: they are inputs
    bound_rule = rule.copy(ranges={}, bound={}).bound_rule({**params, **rule.bound, **examples})
    values = {**bound_rule.numbers, **symbols}
    specialization = bound_rule.specialization
    ordered = [now(values[name]) for name in specialization.runtime]
    return specialization.record(grad_out, tin, ordered)


@provided
def find_omission(recipe: Recipe, variant: Variant) -> str:
    """Return what a rule's graph leaves out that its code does; "": nothing that shows."""
    return ""


@provided
def run_rule(
    library: str, function: Callable[..., Any], trace: Trace, /, *args: Any, **params: Any
) -> Any:
    """Call a rule's function in a trace; the core calls it as it is."""
    return call_plainly(function, trace, *args, **params)


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


over_shards = of_engine(__name__, "over_shards", "a rule over shards", RuleError)


def bare_graph(graphs: FunctionGraph, has_tin: bool) -> Graph:
    """Return the graph of a rule alone: `grad_out, [tin], *params, [key] -> the gradient`."""
    backward = without_memory(graphs.backward)
    inputs = (each for each in backward.inputs if has_tin or each.attr("name") != "tin")
    return replace(backward, inputs=tuple(inputs))


def fill_bound(
    rule: Rule, hidden: frozenset[str], params: Mapping[str, Any]
) -> tuple[Rule, dict[str, Any]]:
    visible_params = {name: value for name, value in params.items() if name not in hidden}
    return (_fill(rule, params) if hidden else rule), visible_params


def parts_of(rule: Rule, params: Mapping[str, Any]) -> Iterator[tuple[Rule, dict[str, Any]]]:
    """Yield the rules with code of which a rule is composed, in order, with values for params."""
    values = {**params, **rule.bound}
    if rule.function is not None:
        yield rule, rule.signature_of_function.select(values)
        return
    for part in rule._resolved_parts():
        yield from parts_of(part, part.signature.select(values))


def gradient_of(rule: str, returned: Any) -> Any:
    """Return the one gradient that a rule has returned, which may be in a tuple."""
    if isinstance(returned, tuple | list) and len(returned) == 1:
        returned = returned[0]
    if returned is None or isinstance(returned, tuple | list):
        words = "None" if returned is None else f"a {type(returned).__name__}"
        raise GradientError(
            f"rule {rule!r} returned {words}; expected the gradient, a tensor like tin. For zero "
            "write xp.zeros_like(grad_out)"
        )
    return returned


class MadeUp(NamedTuple):
    """Stands for a tensor where there is no call."""

    shape: tuple[int, ...]
    dtype: str


def made_up(facts: Mapping[str, Any]) -> MadeUp:
    rank = facts.get("ndim", 2)
    shape = facts.get("shape") or (SHAPES[rank] if rank < len(SHAPES) else (2,) * rank)
    return MadeUp(tuple(shape), facts.get("dtype", "float32"))


def _fill(rule: Rule, values: Mapping[str, Any]) -> Rule:
    bound = {k: values[v.name] if isinstance(v, Slot) else v for k, v in rule.bound.items()}
    return rule.copy(bound=bound, parts=tuple(_fill(part, values) for part in rule.parts))


def _functions_of(rule: Rule) -> Iterator[Any]:
    if rule.function is not None:
        yield rule.function
    for part in rule._resolved_parts():
        yield from _functions_of(part)


class RuleCode:
    """The captured forms and the lowered code of a rule with its static params fixed.

    Equal rules share it, and their Specializations fill it at the first calls. What the rule's code
    reads besides its inputs is among the facts of each form: nothing else makes one out of date.

    Attributes:
        id: its name in tokens, different for each.
        finalizers: drop it with the functions and objects that the rule is made of.
        forms: what it was captured as, with its input and without.
        entries: the rule as code of backends, applied alone: by graph, so that equal ones are
            emitted once, and by facts; None: it runs as written.
        draws: whether a capture of it was random.
        libraries: those of the tensors of calls, where the graph depends on it; grows.
        uncapturable: why it runs as written, without the frames that led there.
    """

    __slots__ = (
        "draws", "entries", "finalizers", "forms", "id", "libraries", "uncapturable",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.finalizers: list[weakref.finalize[..., Any]] = []
        self.id = f"{name}#{next(SERIALS)}"
        self.forms = {True: Forms(), False: Forms()}
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
        return self.forms[True].facts | self.forms[False].facts


def asked_of_input(facts: Iterable[str]) -> frozenset[str]:
    """Return the facts that a call tells, of all that captures have asked for."""
    return frozenset(fact for fact in facts if not is_read(fact) and fact not in GIVEN)


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
