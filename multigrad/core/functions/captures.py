"""`Captures`: the graphs of a Function, one variant for each layout and set of facts.

Facts are what its code asked about the arguments. A capture that lacks one adds its name to `facts`
and raises NeedsConcrete; `for_answers` then asks for the facts again, until the variant
exists (`noted=False`: we asked, not a symbol in the user's code). Each variant is captured once and
compared with the code as written (the proof). Within another capture its graphs are recorded there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import DisprovedError, GradientError, TraceError
from ..ir.graph import Location
from ..passes.facts import GIVEN
from ..support.lazy_modules import NEEDS_ENGINE, provided
from ..support.threads import build_once
from ..trace.identity import items_key
from ..trace.lookups import READ, look_up_all
from ..trace.trace import NeedsConcrete, Trace
from .arguments import Layout
from .facts import facts_of_symbols, gather_facts
from .plain import capture_plain, is_plain
from .proof import has_same_bits, is_asked, is_shipped
from .recipe import Findings, NotCaptured, Recipe, Variant, warn_disproved

MOST_VARIANTS = 256


class Captures:
    """The variants that a recipe was captured as.

    Attributes:
        recipe: of what is called.
        source: what is captured and proven: the recipe, or that of the rule alone.
        prove: whether a capture is compared with the code as written.
        module: the name of the module that warnings are about.
        findings: what captures have found until now.
        variants: those of `findings`.
    """

    def __init__(
        self,
        recipe: Recipe,
        prove: bool,
        module: str,
        findings: Findings | None = None,
        source: Recipe | None = None,
    ) -> None:
        self.recipe = recipe
        self.source = recipe if source is None else source
        self.prove = prove
        self.module = module
        self.findings = Findings() if findings is None else findings
        self.variants = self.findings.variants

    @property
    def facts(self) -> frozenset[str]:
        """The names of the facts that decide on the variant of a call."""
        return self.findings.facts

    def anew(self) -> Captures:
        """Return captures of the same, as if nothing had been called."""
        return Captures(self.recipe, self.prove, self.module)

    # --- who tells the facts: a call, the capture around it, or whoever knows some ----------------
    def for_call(self, layout: Layout, leaves: Sequence[Any]) -> Variant:
        """Return the variant for a call's arguments, proven for its dtype."""

        def tell(needed: frozenset[str]) -> dict[str, Any]:
            subject, places = self.recipe.subject, self.findings.places
            return gather_facts(subject, needed, layout, leaves, places=places)

        variant, facts = self.for_answers(layout, tell, leaves)
        return self.proven(variant, layout, leaves, facts)

    def for_known(
        self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
    ) -> Variant:
        """Return the variant under facts that are known without a call: what the code reads, and
        what is true of every input, nobody has to tell.
        """

        def tell(needed: frozenset[str]) -> dict[str, Any]:
            return {**facts, **dict.fromkeys(needed & {*GIVEN}, True), **look_up_all(needed)}

        return self.for_answers(layout, tell, leaves)[0]

    def for_symbols(self, trace: Trace, layout: Layout, leaves: Sequence[Any]) -> Variant:
        """Return the variant for symbolic arguments, under the facts that turn out to be needed.

        Raises:
            NeedsConcrete: it asks the symbols themselves, which the outer capture has to answer.
        """
        try:
            return self.for_facts(layout, {}, leaves)
        except NeedsConcrete:
            tell = partial(facts_of_symbols, trace, layout=layout, leaves=leaves)
            return self.for_answers(layout, tell, leaves)[0]

    def for_answers(
        self,
        layout: Layout,
        tell: Callable[[frozenset[str]], dict[str, Any]],
        leaves: Sequence[Any],
    ) -> tuple[Variant, dict[str, Any]]:
        """Return the variant and its facts, which `tell` returns as far as they are known."""
        # Each round adds to `self.facts`, or ends in an error.
        while True:
            needed = self.facts
            facts = tell(needed)
            try:
                return self.for_facts(layout, facts, leaves), facts
            except NeedsConcrete:
                if self.facts == needed:
                    raise

    # --- the variant under facts ------------------------------------------------------------------
    def for_facts(
        self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
    ) -> Variant:
        """Return the variant for a layout under these facts, captured once.

        Raises:
            NeedsConcrete: more facts are needed; `self.facts` has been extended.
            NotCaptured: it cannot be captured.
        """
        key = (layout.key, items_key(facts))
        try:
            hash(key)
        except TypeError as error:
            name = self.recipe.name
            message = f"function {name!r} got an object that holds what has no hash: {error}"
            raise NotCaptured(TraceError(message)) from error
        variant = self.variants.get(key)
        if variant is not None:
            self._raise_if_more_is_needed(variant, layout, leaves)
            return variant
        if not self.findings.facts <= facts.keys():
            # All variants have the same facts, so that the key of a call is the same for all.
            raise NeedsConcrete(*self.facts, noted=False)
        build = partial(self._capture, layout, facts, leaves)
        return build_once(self.variants, key, build, MOST_VARIANTS)

    def _capture(self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any]) -> Variant:
        wide_variant = self._variant_of_wide(layout, facts)
        if wide_variant is not None:
            return wide_variant
        try:
            variant = capture(self.source, layout, facts, leaves)
        except NeedsConcrete as need:
            # A number that code reads and that keeps changing has no value in a capture that serves
            # all its values.
            asks_for_number = any(fact.startswith(f"param:{READ}") for fact in need.facts)
            if facts.keys() >= set(need.facts) or asks_for_number:
                fact_names = ", ".join(need.facts) or "the shape of what it computed"
                message = f"{self.recipe.subject} needs {fact_names} in a way not captured"
                raise NotCaptured(TraceError(message)) from need
            self.require(need.facts, need.place)
            if not is_plain(self.source):
                self._raise_if_more_is_needed(None, layout, leaves)  # it is captured again anyway
            raise
        self._raise_if_more_is_needed(variant, layout, leaves)
        variant = variant.laid_out(layout.without_objects())
        # The capture fixed more facts itself: it is stored under these, and the call begins anew.
        if not variant.facts.keys() <= facts.keys():
            self.require(variant.facts)
            self.variants[layout.key, items_key(variant.facts)] = variant
            raise NeedsConcrete(*self.facts, noted=False)
        return variant

    def _variant_of_wide(self, layout: Layout, facts: Mapping[str, Any]) -> Variant | None:
        # A variant captured for wide floats may hold in 16 bits, too: its `reach` tells in which.
        key = layout.key_of_wide
        if key is None or "dtype" in self.facts:
            return None
        facts_of_wide = {fact: value for fact, value in facts.items() if fact != "dtype"}
        wide = self.variants.get((key, items_key(facts_of_wide)))
        if wide is None or wide.reach is None or not wide.reach.holds_in(facts["dtype"]):
            return None
        return replace(wide, layout=layout.without_objects(), facts=dict(facts))

    def _raise_if_more_is_needed(
        self, variant: Variant | None, layout: Layout, leaves: Sequence[Any]
    ) -> None:
        is_open = variant is None or variant.reads_names or variant.has_index
        if is_open and leaves and asks_more(self, variant, layout, leaves):
            raise NeedsConcrete(*self.facts, noted=False)

    def require(self, facts: Iterable[str], place: Location | None = None) -> None:
        """Add to the facts that are needed; `place` is the line that asked for them."""
        self.findings.facts |= frozenset(facts)
        if place is not None:
            self.findings.places = {**dict.fromkeys(facts, place), **self.findings.places}

    # --- its proof --------------------------------------------------------------------------------
    def proven(
        self, variant: Variant, layout: Layout, leaves: Sequence[Any], facts: Mapping[str, Any]
    ) -> Variant:
        """Return a variant that is proven for the dtype of a call; `facts` are those of its key.

        Raises:
            NotCaptured: it is disproved.
        """
        dtype = layout.dtype or ""
        # One proof for each dtype of the first float tensor.
        # A variant for numbers that move is compared with those for some of their values.
        if dtype not in variant.proofs and is_asked(self.prove) and not variant.numbers:
            variant = self._prove(variant.laid_out(layout), leaves)
            # Kept without the call's objects, so that no argument stays alive.
            variant = variant.laid_out(layout.without_objects())
            self.variants[layout.key, items_key(facts)] = variant
        proof = variant.proofs.get(dtype)
        if isinstance(proof, DisprovedError):
            raise NotCaptured(proof)
        if variant.layout is not layout and (variant.layout.dtype or "") != dtype:
            variant = variant.laid_out(layout.without_objects())
        return variant

    def _prove(self, variant: Variant, leaves: Sequence[Any]) -> Variant:
        dtype = variant.layout.dtype or ""
        try:
            proof = variant.proofs[dtype] = prove(self.source, variant, leaves)
        except DisprovedError as error:
            other = read_otherwise(self.source, variant, leaves)
            if other is not None:
                return other
            warn_disproved(error, self.module)
            # Kept, so that each later call of this dtype raises it too.
            variant.proofs[dtype] = error.to_keep()
            return variant
        except TraceError as error:
            raise NotCaptured(error) from error
        other = read_otherwise(self.source, variant, leaves) if proof else None
        if other is not None and not other.proofs[dtype]:  # the other does not run on these tensors
            return other
        variant = as_placed(variant) if variant.places else variant
        forward = variant.graphs.forward
        if not proof or "not proven" in forward.origin:
            return variant
        unproven = replace(forward, origin=f"{forward.origin}; not proven: {proof}")
        return replace(variant, graphs=replace(variant.graphs, forward=unproven))

    def compare(self, variant: Variant, leaves: Sequence[Any], *, is_call: bool = True) -> None:
        """Compare a variant with its code once more, on a call's own values alone (`is_call`).

        Raises:
            DisprovedError: they differ.
        """
        prove(self.source, variant, leaves, is_call=is_call)


def capture(
    recipe: Recipe, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
) -> Variant:
    """Return the graphs of a recipe for arguments of a layout; see `capture_code`."""
    if recipe.graphs.capture is not None:
        return recipe.graphs.capture(recipe, layout, facts, leaves)
    if is_plain(recipe):
        try:
            return capture_plain(recipe, layout, facts)
        except Exception as error:
            if isinstance(error, NeedsConcrete | GradientError):
                raise  # any other is of the user's code: the engine explains it
    return capture_code(recipe, layout, facts, leaves)


@provided
def capture_code(
    recipe: Recipe, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
) -> Variant:
    """Run a recipe on symbolic values and return its simplified graphs.

    They may have more facts than these: code asked for some that a call's leaves tell.

    Raises:
        NeedsConcrete: Python needed something concrete that is not among the facts.
        NotCaptured: it reaches beyond what is captured.
        GradientError: its gradients do not fit its arguments.
        Exception: what the user's own code raised.
    """
    if recipe.noun != "rule":
        raise NotCaptured(TraceError(f"{recipe.subject} is code that {NEEDS_ENGINE}"))
    return capture_plain(recipe, layout, facts)


@provided
def asks_more(
    captures: Captures, variant: Variant | None, layout: Layout, leaves: Sequence[Any]
) -> bool:
    """Return whether a call needs facts that its code has not asked for, which are then required;
    `variant` is what it was captured to, if it was.
    """
    return False


def prove(recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool = False) -> str:
    """Return "" where graphs are what was written, else why that could not be found out.

    Raises:
        DisprovedError: they are something else.
    """
    if recipe.graphs.prove is not None:
        return recipe.graphs.prove(recipe, variant, leaves, is_call=is_call)
    if is_shipped(recipe, variant):
        return ""
    if is_plain(recipe) and has_same_bits(recipe, variant, leaves):
        return ""
    return prove_code(recipe, variant, leaves, is_call=is_call)


@provided
def prove_code(recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool) -> str:
    """Compare graphs with the code that they were captured from; see `prove`."""
    return f"the code gives other bits, and whether these are its rounding {NEEDS_ENGINE}"


@provided
def read_otherwise(recipe: Recipe, variant: Variant, leaves: Sequence[Any]) -> Variant | None:
    """Return a proven capture as the code of another library than that of the call's tensors, on
    which code that names several may not run at all; None: there is none.
    """
    return None


@provided
def as_placed(variant: Variant) -> Variant:
    """Return a variant whose results lie where those of its code do, as a proof has found them."""
    return variant
