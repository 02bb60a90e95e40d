"""`Captures`: the graphs of a Function, one variant for each layout and set of facts.

Facts are what its code asked about the arguments. Each variant is captured once and compared with
the code as written (the proof).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..capture.dialect import find_dialect
from ..errors import DisprovedError, TraceError
from ..graph import ops
from ..graph.passes.facts import Shapes, needed_shapes
from ..graph.support.threads import build_once
from ..trace.identity import items_key
from ..trace.lookups import look_up_all
from ..trace.trace import NeedsConcrete, Trace
from .calls.arguments import Layout
from .calls.decision import warn_disproved
from .calls.facts import facts_of_symbols, gather_facts
from .calls.recipe import NotCaptured, Recipe, Variant
from .proof.compare import is_asked
from .recipes.record import capture, prove

MOST_VARIANTS = 256
# Ops whose constant index may lie outside the array.
INDEXED = (ops.GETITEM, ops.TAKE)


class Captures:
    """The variants that a recipe was captured as.

    Attributes:
        recipe: runs the function on symbolic values.
        prove: whether a capture is compared with the code as written.
        module: the name of the module that warnings are about.
        variants: the graphs, by layout and facts.
        facts: the names of the facts that the code has asked for; they only grow.
    """

    def __init__(self, recipe: Recipe, prove: bool, module: str) -> None:
        self.recipe = recipe
        self.prove = prove
        self.module = module
        self.variants: dict[Any, Variant] = {}
        self.facts: frozenset[str] = frozenset()

    def for_call(self, layout: Layout, leaves: Sequence[Any]) -> Variant:
        """Return the variant for a call's arguments, under the facts that turn out to be needed.

        Raises:
            NotCaptured: it cannot be captured.
        """
        while True:
            try:
                # Each round adds to `self.facts`, or ends in `NotCaptured`.
                facts = gather_facts(self.recipe.subject, self.facts, layout, leaves)
                variant = self.for_facts(layout, facts, leaves)
                break
            except NeedsConcrete:
                continue
        dtype = layout.dtype or ""
        # One proof for each dtype of the first float tensor.
        if dtype not in variant.proofs and is_asked(self.prove):
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
            proof = variant.proofs[dtype] = prove(self.recipe, variant, leaves)
        except DisprovedError as error:
            warn_disproved(error, self.module)
            # Kept, so that each later call of this dtype raises it too.
            variant.proofs[dtype] = error.to_keep()
            return variant
        except TraceError as error:
            raise NotCaptured(error) from error
        forward = variant.graphs.forward
        if not proof or "not proven" in forward.origin:
            return variant
        told = replace(forward, origin=f"{forward.origin}; not proven: {proof}")
        return replace(variant, graphs=replace(variant.graphs, forward=told))

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
            message = (
                f"function {self.recipe.name!r} got an object that holds what has no hash: {error}"
            )
            raise NotCaptured(TraceError(message)) from error
        variant = self.variants.get(key)
        if variant is not None:
            return variant
        if not self.facts <= facts.keys():
            # Facts that one capture of the code asked for are facts of all.
            raise NeedsConcrete(*self.facts, noted=False)
        build = partial(self._capture, layout, facts, leaves)
        return build_once(self.variants, key, build, MOST_VARIANTS)

    def _capture(self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any]) -> Variant:
        known = self._reaching(layout, facts)
        if known is not None:
            return known
        try:
            variant = capture(self.recipe, layout, facts, leaves)
        except NeedsConcrete as need:
            if facts.keys() >= set(need.facts):
                needed = ", ".join(need.facts) or "the shape of what it computed"
                message = f"{self.recipe.subject} needs {needed} in a way not captured"
                raise NotCaptured(TraceError(message)) from need
            self.facts = self.facts | set(need.facts)
            raise
        self._look_outside(variant, layout, facts, leaves)
        variant = variant.laid_out(layout.without_objects())
        # The capture fixed more facts itself: it is stored under these, and the call begins anew.
        if not variant.facts.keys() <= facts.keys():
            self.facts = self.facts | frozenset(variant.facts)
            self.variants[layout.key, items_key(variant.facts)] = variant
            raise NeedsConcrete(*self.facts, noted=False)
        return variant

    def _look_outside(
        self, variant: Variant, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any]
    ) -> None:
        indexed = [node for node in variant.graphs.forward.nodes if node.op in INDEXED]
        dialect = find_dialect(self.recipe.dialect()) if indexed else None
        # Unless a library refuses a constant index that lies outside, its meaning depends on the
        # shape, which becomes a fact.
        if dialect is None or dialect.habits.outside[0] == "refused":
            return
        shapes = Shapes({})
        for node in indexed:
            needed = frozenset(needed_shapes(node, shapes))
            if needed <= facts.keys():
                continue
            known = gather_facts(self.recipe.subject, needed, layout, leaves)
            try:
                Shapes({**facts, **known}).computed(node)
            except IndexError:
                self.facts = self.facts | needed
                raise NeedsConcrete(*needed) from None

    def _reaching(self, layout: Layout, facts: Mapping[str, Any]) -> Variant | None:
        # A variant captured for wide floats may hold in 16 bits, too: its `reach` tells in which.
        if not layout.is_apart or layout.mixes_floats or "dtype" in self.facts:
            return None
        wide = {fact: value for fact, value in facts.items() if fact != "dtype"}
        known = self.variants.get((layout.key_of_wide, items_key(wide)))
        if known is None or known.reach is None or not known.reach.holds_in(facts["dtype"]):
            return None
        return replace(known, layout=layout.without_objects(), facts=dict(facts))

    def renewed(self, variant: Variant) -> Variant:
        """Return the variant for what its code reads now: the rule in force, the rules of names.

        Raises:
            NeedsConcrete: under these, more facts about the arguments are needed.
            NotCaptured: under these, it cannot be captured.
        """
        read = look_up_all(variant.facts)
        return self.for_facts(variant.layout, {**variant.facts, **read}) if read else variant

    def for_symbols(self, trace: Trace, layout: Layout, leaves: Sequence[Any]) -> Variant:
        """Return the variant for symbolic arguments, under the facts that turn out to be needed."""
        facts: dict[str, Any] = {}
        while True:
            try:
                return self.for_facts(layout, facts, leaves)
            except NeedsConcrete:
                facts = facts_of_symbols(trace, self.facts, layout, leaves)
