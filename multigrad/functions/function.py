"""`Function`: a function with a gradient of its own, called on any framework's tensors.

A call looks its arguments' types up and finds the framework's own function, lowered at the first such call.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ..capture.dialect import load_dialects
from ..context import Counter, normalize_key
from ..errors import DisprovedError, GradientError, TraceError
from ..identity import items_key, value_key
from ..ir.calls import Called, mark
from ..ir.questions import crossing, note
from ..ir.record import NeedFact, Trace, Value, lift
from ..ir.replay import replay
from ..lowering.backend import Backend, in_use, key_for
from ..lowering.input_checks import find_lacking, refuse_lacking
from ..lowering.lower import Lowered, lower_pair
from ..proof.functions import FunctionUnderProof, prove_function
from ..proof.setting import ALL, how_much, is_asked
from ..reads import is_read, look_up_all
from ..threads import build_once
from ..trees import optree
from .arguments import (
    PLAIN,
    Layout,
    as_numbers,
    flatten,
    one_backend,
    owner_of,
    read_layout,
    unwrap,
)
from .binding import Entry, assemble, bind_leaves
from .facts import facts_of_symbols, gather_facts, watch
from .native import (
    is_imported,
    is_original_on,
    no_original,
    refuse_elsewhere,
    run_as_it_is,
    warn_disproved,
)
from .record import NotCaptured, Recipe, Variant, capture_function

Tensor = Any
MOST_ENTRIES = 1024
MOST_VARIANTS = 256
# (which arguments, what to call then): for arguments that stand for tensors to come (a Keras model under construction).
symbolic: list[tuple[Callable[[Any], bool], Callable[..., Any]]] = []
# (is tracing, what to call then): for a compiler that reads Python code.
tracers: list[tuple[Callable[[], bool], Callable[..., Any]]] = []
# For compilers whose traces hold nothing but constants.
by_identifier: weakref.WeakValueDictionary[str, Function] = weakref.WeakValueDictionary()
_serials = itertools.count()


class Function:
    """A function with a gradient of its own, for tensors of every framework.

    Made by `xg.custom_gradient`, `xg.function`, `xg.from_autograd_function` and their like. Called with tensors of
    one framework, it is that framework's own custom gradient; with NumPy arrays, it computes the outputs, and
    `xg.vjp` gives the gradient.

    Attributes:
        name: the name of the function that it was made of.
        native: None: what cannot be captured runs as it is, on its own framework; True: always; False: never.
    """

    autograph_info__: ClassVar[dict[str, Any]] = {}  # AutoGraph converts nothing here

    def __init__(self, recipe: Recipe, wrapped: Any = None, prove: bool = True) -> None:
        in_use()  # compilers can neither read the discovery of backends nor load one
        self.recipe = recipe
        self.name = recipe.name
        self.native = recipe.native
        self.prove = prove
        self.parameters = parameters_of(wrapped if wrapped is not None else recipe)
        self.variants: dict[Any, Variant] = {}
        self.facts: frozenset[str] = frozenset()
        self._identify()
        self._entries: dict[Any, Entry] = {}
        self._key: Any = None
        self._counter = Counter()
        self._draw_key: Callable[[], Any] | None = None
        if wrapped is not None:
            functools.update_wrapper(self, wrapped, updated=())
        else:
            self.__name__ = self.name

    def _identify(self) -> None:
        self.identifier = f"{self.name}#{next(_serials)}"
        by_identifier[self.identifier] = self

    def __repr__(self) -> str:
        return f"<Function {self.name}>"

    def __reduce__(self) -> Any:
        # One that a module holds pickles by name, as functions do; any other by its graphs.
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        name = getattr(self, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (_rebuild, (self.to_dict(), self._key))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an object as functions do: a method with a gradient of its own.

        It runs as it is, by a copy that nobody keeps: the object may change between calls, and is not kept alive.
        """
        if instance is None:
            return self
        method = self._copy()
        method.native = self.native is not False
        return functools.partial(method, instance)

    def keyed(self, key: Any) -> Function:
        """Return this Function with reproducible random draws, the same on every framework.

        Args:
            key: an int as for `jax.random.key`, a jax key, or two uint32; the n-th call from now on draws from
                `fold_in(key, n)`.
        """
        other = self._copy()
        other._key = normalize_key(key)
        other._counter = Counter()
        return other

    def drawing(self, draw_key: Callable[[], Any]) -> Function:
        """Return this Function with another generator: `draw_key` gives each call two uint32, perhaps of a trace."""
        other = self._copy()
        other._draw_key = draw_key
        return other

    def _copy(self) -> Function:
        other = Function.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._entries = {}
        other._identify()
        return other

    @property
    def is_keyed(self) -> bool:
        """Whether its random draws are reproducible."""
        return self._key is not None

    @property
    def counter(self) -> Counter:
        """What counts the draws of a keyed Function."""
        return self._counter

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for the arguments; gradients flow back by the own backward."""
        for is_tracing, call_traced in tracers:
            if is_tracing():
                return call_traced(self, args, kwargs)
        return self.apply(args, kwargs)

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs, where no compiler reads along."""
        if not kwargs:
            kinds: list[Any] = []
            try:
                for value in args:
                    kind = type(value)
                    if kind is float:
                        kinds.append(kind)
                    elif kind in PLAIN:
                        kinds.append((kind, value))
                    elif isinstance(value, Value):  # whose dtype is no key
                        return self._apply_any(args, kwargs, None)
                    else:
                        kinds.append((kind, value.dtype))
                entry = self._entries.get(tuple(kinds))
            except (AttributeError, TypeError):  # nested, or a dtype that has no hash
                return self._apply_any(args, kwargs, None)
            if entry is not None:
                return entry(args)
            return self._apply_any(args, kwargs, tuple(kinds))
        return self._apply_any(args, kwargs, None)

    def _apply_any(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> Any:
        leaves, tree = flatten(args, kwargs)
        numbers = as_numbers(leaves)
        if numbers is not None:
            leaves, key = numbers, None
            args, kwargs = optree.tree_unflatten(tree, leaves)
        if any(isinstance(leaf, Value) for leaf in leaves):
            return self.inline(leaves, tree)
        load_dialects()  # what stands for tensors to come is known by then
        for is_symbolic, call in symbolic:
            if any(map(is_symbolic, leaves)):
                return call(self, args, kwargs)
        entry = self._find_entry(leaves, tree, key)
        return entry(leaves)

    # --- entries -----------------------------------------------------------------------------------

    def _find_entry(self, leaves: Sequence[Any], tree: Any, key: Any) -> Entry:
        """Return what runs a call of this layout, built at the first one."""
        kinds = tuple(map(kind_of, leaves))
        if key is None or None in kinds:  # an object that has a dtype may be no tensor
            key = (
                tree,
                tuple(kind or value_key(leaf) for kind, leaf in zip(kinds, leaves, strict=True)),
            )
        try:
            hash(key)
        except TypeError:  # an object holds what has no hash, as TensorFlow's tensors
            return self._build(leaves, tree)
        build = partial(self._build, leaves, tree)
        return self._entries.get(key) or build_once(self._entries, key, build, MOST_ENTRIES)

    def _build(self, leaves: Sequence[Any], tree: Any) -> Entry:
        wrapped = tuple(i for i, leaf in enumerate(leaves) if unwrap(leaf) is not leaf)
        given = [unwrap(leaf) for leaf in leaves]
        as_arrays = not any(owner_of(leaf) for leaf in given)
        if as_arrays:  # Python numbers alone: NumPy's
            wrapped = tuple(i for i, leaf in enumerate(given) if isinstance(leaf, float))
            given = [np.asarray(leaf) if i in wrapped else leaf for i, leaf in enumerate(given)]
        if as_arrays and not wrapped and self.parameters is not None:
            args, kwargs = optree.tree_unflatten(tree, given)
            self.parameters.bind(*args, **kwargs)  # says which argument is missing
        layout = read_layout(self.name, self.parameters, given, tree)
        backend = one_backend(self.name, layout, given)
        inner = self._entry_for(layout, backend, given)
        if not wrapped:
            return inner
        open_leaf = np.asarray if as_arrays else unwrap

        def unwrapping(leaves: Sequence[Any]) -> Any:
            opened = [open_leaf(leaf) if i in wrapped else leaf for i, leaf in enumerate(leaves)]
            return inner(opened)

        return unwrapping

    def _entry_for(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        """Return the entry for unwrapped leaves: captured, or as it is."""
        if self.native is True:
            return self._native_entry(layout.without_objects(), backend, None)
        return self._captured_or_native(
            layout, backend, lambda: self._captured_entry(layout, backend, leaves)
        )

    def _captured_or_native(
        self, layout: Layout, backend: Backend, capture: Callable[[], Entry]
    ) -> Entry:
        """Return the captured entry, or where there is none the function as it is.

        On its own framework an imported one runs as it is whatever went wrong, but for gradients that do not fit.
        """
        try:
            return capture()
        except NotCaptured as error:
            if self.native is False:
                raise error.error from error.__cause__
            return self._native_entry(layout.without_objects(), backend, error.error.to_keep())
        except GradientError:
            raise
        except Exception:
            if self.native is False or not is_original_on(self.recipe, backend):
                raise
            return self._native_entry(layout.without_objects(), backend, None)

    def _captured_entry(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        entry = self._lowered_entry(self.variant_for(layout, leaves), backend)
        if not self.facts - {"dtype"}:
            return entry
        layout = layout.without_objects()
        # One lowering per set of facts; both change together, when more facts are needed.
        state: tuple[Any, dict[Any, Entry]] = watch(self.facts, layout), {}
        state[1][state[0](leaves)] = entry
        reads = any(map(is_read, self.facts))

        def find(leaves: Sequence[Any]) -> Entry:
            own = layout.with_objects(leaves)
            return self._captured_or_native(
                layout,
                backend,
                lambda: self._lowered_entry(self.variant_for(own, leaves), backend),
            )

        def with_facts(leaves: Sequence[Any]) -> Any:
            """Look at the arguments first, and at what is read besides them."""
            if reads and backend.region is not None:
                with backend.region():
                    return choose(leaves)(leaves)
            return choose(leaves)(leaves)

        def choose(leaves: Sequence[Any]) -> Entry:
            nonlocal state, reads
            look, known = state
            found = known.get(look(leaves))
            if found is None:
                before = self.facts
                found = find(leaves)
                if self.facts != before or len(known) >= MOST_ENTRIES:
                    state = look, known = watch(self.facts, layout), {}
                    reads = any(map(is_read, self.facts))
                known[look(leaves)] = found
            return found

        return with_facts

    def variant_for(self, layout: Layout, leaves: Sequence[Any]) -> Variant:
        """Return the graphs for arguments, captured under the facts about them that turn out to be needed.

        Raises:
            NotCaptured: it cannot be captured.
        """
        while True:
            try:
                facts = gather_facts(self.name, self.facts, layout, leaves)
                variant = self.variant(layout, facts)
                break
            except NeedFact:
                continue
        if variant.proof is None and is_asked(self.prove):
            variant = self._prove(replace(variant, layout=layout), leaves)
            variant = replace(variant, layout=layout.without_objects())
            self.variants[layout.key, items_key(facts)] = variant
        if isinstance(variant.proof, DisprovedError):
            raise NotCaptured(variant.proof)
        return variant

    def _prove(self, variant: Variant, leaves: Sequence[Any]) -> Variant:
        """Return a captured form that was compared with what it was captured from."""

        def recapture() -> Any:
            return capture_function(self.recipe, variant.layout, variant.facts)

        try:
            proof = prove_function(FunctionUnderProof(self.recipe, variant, leaves), recapture)
        except DisprovedError as error:
            warn_disproved(error, self.__module__)
            return replace(variant, proof=error.to_keep())
        if not proof:
            return replace(variant, proof="")
        forward = variant.pair.forward
        told = replace(forward, origin=f"{forward.origin}; not proven: {proof}")
        return replace(variant, proof=proof, pair=replace(variant.pair, forward=told))

    def variant(self, layout: Layout, facts: Mapping[str, Any]) -> Variant:
        """Return the graphs for a layout under these facts, captured once.

        Raises:
            NeedFact: more facts are needed; `self.facts` has been extended.
            NotCaptured: it cannot be captured.
        """
        key = (layout.key, items_key(facts))
        try:
            hash(key)
        except TypeError as error:
            message = f"function {self.name!r} got an object that holds what has no hash: {error}"
            raise NotCaptured(TraceError(message)) from error
        variant = self.variants.get(key)
        if variant is not None:
            return variant
        if not self.facts <= facts.keys():
            raise NeedFact(*self.facts, noted=False)
        build = partial(self._capture, layout, facts)
        return build_once(self.variants, key, build, MOST_VARIANTS)

    def _capture(self, layout: Layout, facts: Mapping[str, Any]) -> Variant:
        try:
            variant = capture_function(self.recipe, layout, facts)
        except NeedFact as need:
            if facts.keys() >= set(need.facts):
                message = (
                    f"function {self.name!r} needs {', '.join(need.facts)} in a way not captured"
                )
                raise NotCaptured(TraceError(message)) from need
            self.facts = self.facts | set(need.facts)
            raise
        return replace(variant, layout=layout.without_objects())

    def renewed(self, variant: Variant) -> Variant:
        """Return a captured form as it is for what is read now: the rule in force, the rules that names mean.

        Raises:
            NeedFact: under them, more has to be known of the arguments.
            NotCaptured: under them, it cannot be captured.
        """
        read = look_up_all(variant.facts)
        return self.variant(variant.layout, {**variant.facts, **read}) if read else variant

    def _lowered_entry(self, variant: Variant, backend: Backend) -> Entry:
        pair = variant.pair
        lowered = self.lowered(variant, backend)
        dtype = variant.layout.dtype
        lacking = find_lacking(f"function {self.name!r}", backend, pair.forward, pair.backward)
        refuse_lacking(lacking, dtype or "")
        entry = bind_leaves(self, variant, backend, lowered)
        return self._proving(entry, variant) if how_much() == ALL else entry

    def _proving(self, entry: Entry, variant: Variant) -> Entry:
        """Return an entry that compares the function with its graphs on each call's arguments."""

        def recapture() -> Any:
            return capture_function(self.recipe, variant.layout, variant.facts)

        def proving(leaves: Sequence[Any]) -> Any:
            under_proof = FunctionUnderProof(self.recipe, variant, leaves)
            prove_function(under_proof, recapture, is_call=True)
            return entry(leaves)

        return proving

    def lowered(self, variant: Variant, backend: Backend) -> Lowered:
        """Return a captured form as one backend runs it, lowered once."""
        build = partial(lower_pair, variant.pair, backend)
        return build_once(variant.lowered, backend.name, build)

    def _native_entry(self, layout: Layout, backend: Backend, error: TraceError | None) -> Entry:
        refuse_elsewhere(error, backend)
        if is_original_on(self.recipe, backend):
            apply = self.recipe.apply  # type: ignore[attr-defined]

            def original(leaves: Sequence[Any]) -> Any:
                args, kwargs = layout.rebuild(leaves)
                return apply(*args, **kwargs)

            return original
        if is_imported(self.recipe) and error is not None:
            raise no_original(error, self.recipe) from error.__cause__

        def native(leaves: Sequence[Any]) -> Any:
            return run_as_it_is(self, layout, backend, leaves, error)

        return native

    def draw(self, backend: Backend) -> Any:
        """Return the key of one call."""

        def draw_anew() -> Any:
            if self._key is None:
                return (self._draw_key or backend.draw_key)()
            return backend.fold_in(key_for(backend, self._key), next(self._counter))

        return draw_anew() if backend.repeat_draw is None else backend.repeat_draw(draw_anew)

    def to_dict(self) -> dict[str, Any]:
        """Return this Function as plain data, which `xg.from_dict` reads and `xg.save` writes as JSON.

        Saved are the forms in which it has been captured: for the kinds of arguments that it was called with.

        Raises:
            TraceError: it has not been captured.
            FormatError: it has more than a document holds, or arguments that no document has.
        """
        from ..saving import document_of

        return document_of(self)

    # --- inside of another capture -----------------------------------------------------------------

    def inline(self, leaves: Sequence[Any], tree: Any) -> Any:
        """Record the function's ops in the capture that its arguments belong to."""
        trace = next(leaf.trace for leaf in leaves if isinstance(leaf, Value))
        layout = read_layout(self.name, self.parameters, leaves, tree)
        try:
            with crossing(NeedFact):
                variant = self._variant_for_symbols(trace, layout, leaves)
        except NotCaptured as error:
            raise note(error.error) from error.__cause__
        pair = variant.pair
        given = {
            leaf.name: value
            for leaf, value in zip(layout.leaves, leaves, strict=True)
            if leaf.kind != "static"
        }
        given = {name: trace.value(lift(trace, value)) for name, value in given.items()}
        if pair.is_random:
            given["key"] = trace.next_key()
        outputs = replay(trace, pair.forward, given)
        names = tuple(given)
        called = Called(
            pair.backward, pair.cotangents, names, pair.wrt, tuple(o.node for o in outputs)
        )
        return assemble(variant, mark(trace, called, [given[name].node for name in names]))

    def _variant_for_symbols(self, trace: Trace, layout: Layout, leaves: Sequence[Any]) -> Variant:
        """Return the graphs for symbolic arguments, under the facts about them that turn out to be needed."""
        facts: dict[str, Any] = {}
        while True:
            try:
                return self.variant(layout, facts)
            except NeedFact:
                facts = facts_of_symbols(trace, self.facts, layout, leaves)


def _rebuild(data: dict[str, Any], key: Any) -> Function:
    from ..saving import from_dict

    function = from_dict(data)
    return function if key is None else function.keyed(key)


def parameters_of(function: Any) -> inspect.Signature | None:
    """Return a signature, which names arguments in messages."""
    own = getattr(function, "signature", None)
    if isinstance(own, inspect.Signature):
        return own
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def kind_of(leaf: Any) -> Any:
    """Return what a call looks at of a leaf, where that is less than all of it: of a number, of a tensor."""
    kind = type(leaf)
    if kind is float:
        return kind
    if kind in PLAIN:
        return (kind, leaf)
    return None if owner_of(unwrap(leaf)) is None else (kind, leaf.dtype)
