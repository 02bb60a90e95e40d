"""Functions of objects that hold tensors: a module, a layer, anything with `__call__`, a method.

Plain functions that call such an object are among them, and custom gradients that get one as an
argument. The state of an object is read at each call (`user_code/object_state.py`): its tensors are
hidden arguments, so that weights are never stale. They carry gradients where they are tensors of
the call's own framework, those that a backward adds to their `.grad` too. On that framework the
object itself is called, unless that was ruled out; elsewhere its tensors are constants.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..backend.contract import Backend
from ..backend.discovery import FUNCTION_READERS
from ..capture.copies.run_or_import import run_or_import
from ..capture.dialect import registered_dialects
from ..capture.user_code.inspection import plain_function, wrapped_function
from ..capture.user_code.libraries import OWN, written_in
from ..capture.user_code.object_copies import FilledCopy
from ..capture.user_code.object_state import ObjectState, held_by, is_open, read_state
from ..capture.user_code.signature import called_method, name_of
from ..errors import FormatError, TraceError
from ..graph.ir.types import is_float
from ..graph.support.trees import optree
from ..trace.active_rules import FREE
from ..trace.trace import Trace, Value, copy_of
from .calls.arguments import Completion, flatten, owner_of, replace_at, signature_of, unwrap
from .calls.recipe import ImportedGradient, Options, Recipe, Recorded, library_of
from .entries import MOST_ENTRIES
from .function import Function

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

Tensor = Any
# The name of the hidden argument, which sorts behind all identifiers.
STATE = "~"
HOOKS = ("_forward_hooks", "_forward_pre_hooks")  # of a module


def owner_of_method(function: Any) -> Any:
    """Return the object whose state a callable reads, or a plain function itself; else None."""
    if isinstance(function, types.MethodType):
        owner = function.__self__
    elif isinstance(function, types.FunctionType):
        return function
    elif wrapped_function(function) is not None:
        return None
    else:
        owner = function
    if plain_function(function) is None or type(owner).__module__.startswith(OWN):
        return None
    return owner if is_open(owner) else None


def holds_state(function: Any) -> bool:
    """Return whether a callable's result depends on tensors that an object holds."""
    # For a plain function: an object that its names refer to.
    if isinstance(function, types.FunctionType):
        return bool(read_state(function).tensors)
    return owner_of_method(function) is not None


def recipe_of_object(
    function: Callable[..., Any], name: str, *, native: bool | None = None, library: str = ""
) -> Recipe:
    """Return the recipe of an object, or of a method of one, whose tensors are hidden arguments.

    Args:
        library: what its author says that it is written in.
    """
    owner, method = owner_of_method(function), called_method(function)

    def home() -> str:
        known = "" if library else read_state(owner).home
        return known or library_of(method, said=library)

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return _record_object(function, library, trace, args, kwargs)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        kwargs, held = split(kwargs)
        state = read_state(owner)
        now = {name: held_by(each) for name, each in state.tensors.items()}
        if all(held.get(name, each) is each for name, each in now.items()):
            return Recorded(function(*args, **kwargs), None)
        filled = FilledCopy(owner, state, held)
        outputs = _method_of(function, filled)(*args, **kwargs)
        change = filled.changed()
        if change:
            raise TraceError(f"function {name!r} {change}, which only the object itself does")
        return Recorded(outputs, None)

    def copied(copy: Callable[[Any], Any]) -> Recipe:
        return recipe_of_object(copy(function), name, native=native, library=library)

    return Recipe(
        name,
        run,
        record,
        functions=(function,),
        written_in=home,
        signature=signature_of(method),
        is_derived=True,
        copied=copied,
        options=Options(native=native),
    )


def _record_object(
    function: Callable[..., Any],
    said: str,
    trace: Trace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recorded:
    kwargs, hidden = split(kwargs)
    owner = owner_of_method(function)
    state = read_state(owner)
    trace.source.looks_into = False  # they are among the arguments
    made = len(trace.source.witness.made)
    symbols = {name: copy_of(symbol) for name, symbol in hidden.items()}
    filled = FilledCopy(owner, state, symbols)
    filled.mention(trace)
    held = slice(made, len(trace.source.witness.made))
    called, library = _method_of(function, filled), said or state.home
    route = trace.source.routes.get(library)

    def call_with(given: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return _method_of(function, FilledCopy(owner, read_state(owner), given))(*args, **kwargs)

    if is_intercepted(called):
        with written_in(trace, (library,)):
            outputs = called(*args, **kwargs)
    else:
        whole = (call_with, (hidden, *args)) if hidden else None
        # Hooks run around the method, in what calls it.
        hooks = (getattr(called, name, None) for name in HOOKS)
        method = called if any(hooks) else called_method(called)
        outputs = run_or_import(library, method, trace, args, kwargs, whole=whole)
    before = {name: symbol.node for name, symbol in hidden.items()}
    refuse_updates(trace, f"a {type(owner).__name__}", symbols, before)
    # The object is a copy: what the code stores in it would be lost.
    if change := filled.changed():
        raise trace.error(f"{change}, which a graph does not do")
    # Caches of the library may hold what it refused.
    if route != trace.source.routes.get(library):
        del trace.source.witness.made[held]
    return Recorded(outputs, None)


def _method_of(method: Callable[..., Any], filled: FilledCopy) -> Any:
    is_call = isinstance(method, types.MethodType) and method.__name__ == "call"
    if isinstance(method, types.MethodType) and not (is_call and is_intercepted(filled.object)):
        return types.MethodType(method.__func__, filled.object)
    return filled.object


def is_intercepted(called: Any) -> bool:
    """Return whether a library passes a call of this object with symbols on to multigrad."""
    keepers = (dialect.calls.keeps for dialect in registered_dialects().values())
    return any(keeps is not None and keeps(called) for keeps in keepers)


def split(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the user's own keywords, and the tensors for the objects by name."""
    # The empty name is that of the `Structure`.
    hidden = {name: held for name, held in kwargs.get(STATE, {}).items() if name}
    return {name: each for name, each in kwargs.items() if name != STATE}, hidden


def refuse_updates(
    trace: Trace, whose: str, symbols: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Raise if the code has updated a tensor of an object in place."""
    for name, symbol in symbols.items():
        if symbol.node is not before[name]:
            raise trace.error(
                f"updates {name!r} of {whose} in place, which a graph does not do. A module in "
                "training may: call its .eval() first"
            )


class Structure:
    """A static argument that stands for all that objects hold besides their tensors."""

    __slots__ = ("__weakref__",)


class HiddenTensors(Completion):
    """Completes a call by the tensors that objects hold: what is called, or some arguments.

    Attributes:
        called: the object, or the method of one, that is called.
        holds: whether an argument holds tensors; None: those of `called` are meant.
    """

    def __init__(self, called: Any = None, holds: Callable[[Any], bool] | None = None) -> None:
        super().__init__(None)
        self.called, self.holds = called, holds
        self._structures: dict[Any, Structure] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied: Any = super().__deepcopy__(memo)
        copied._structures = {}
        copied.called = copy.deepcopy(self.called, memo)
        return copied

    def is_needed(self, leaves: Sequence[Any]) -> bool:
        return self.holds is None or bool(self.values) or any(map(self.holds, leaves))

    def complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        args, kwargs = optree.tree_unflatten(tree, leaves)
        if STATE in kwargs or not self.is_needed(leaves):
            return leaves, tree
        is_inside = self.holds is not None and any(isinstance(leaf, Value) for leaf in leaves)
        # The tensors of objects may be symbols only inside a capture.
        state = self._read(leaves)
        if is_inside and not all(isinstance(own, Value) for own in state.tensors.values()):
            return leaves, tree  # what is no symbol of the capture around is a constant there
        owners = (owner_of(leaf) for leaf in leaves if not isinstance(leaf, Value))
        home = next((owner for owner in owners if owner is not None), None)
        held = {
            name: own if is_inside else on_backend(home, held_by(own))
            for name, own in state.tensors.items()
        }
        return flatten(args, {**kwargs, STATE: {"": self._structure(state), **held}})

    def key(self, leaves: Sequence[Any], tree: Any) -> tuple[Any, ...]:
        return (self._structure(self._read(leaves)),) if self.is_needed(leaves) else ()

    def _read(self, leaves: Sequence[Any]) -> ObjectState:
        if self.holds is None:
            return read_state(owner_of_method(self.called))
        return read_state(tuple(filter(self.holds, leaves)))

    def _structure(self, state: ObjectState) -> Structure:
        # Equal states have the same one. Of a full table they get new ones, and are captured again.
        if len(self._structures) >= MOST_ENTRIES:
            self._structures.clear()
        return self._structures.setdefault(state.key, Structure())


class OfObject(Function):
    """A Function whose hidden arguments are the tensors that an object holds."""

    completion: HiddenTensors

    def __init__(
        self, function: Callable[..., Any], native: bool | None, library: str, prove: bool
    ) -> None:
        recipe = recipe_of_object(function, name_of(function), native=native, library=library)
        completion = HiddenTensors(function)
        super().__init__(recipe, called_method(function), prove, completion)
        completion.parameters = self.parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(is_reading() for is_reading, _, _ in FUNCTION_READERS):
            return self.original(*args, **kwargs)  # whose state a compiler guards
        return self._apply(args, kwargs)

    def _apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # On the object's own framework the object itself runs, whatever it does besides.
        if self.native is not False and self.draws is FREE:
            leaves = [unwrap(leaf) for leaf in flatten(args, kwargs)[0]]
            homes = {owner.name for leaf in leaves if (owner := owner_of(leaf)) is not None}
            is_symbolic = any(isinstance(leaf, Value) for leaf in leaves)
            if not is_symbolic and homes == {read_state(owner_of_method(self.original)).home}:
                return self.original(*args, **kwargs)
        return self._apply_any(args, kwargs, None)

    def to_dict(self) -> dict[str, Any]:
        """Raise: no document holds an object.

        Raises:
            FormatError: always.
        """
        raise FormatError(
            f"function {self.name!r} reads the tensors of an object at each call, which no "
            "document holds. Make a function that takes them as arguments"
        )

    @property
    def original(self) -> Callable[..., Any]:
        return self.completion.called


def on_backend(backend: Backend | None, tensor: Tensor) -> Tensor:
    """Return a tensor of a call's framework; one of another framework becomes a constant there."""
    owner = owner_of(tensor)
    if backend is None or owner is None or owner is backend:
        return tensor
    return backend.tensors.from_numpy(owner.tensors.to_numpy(tensor))


# --- custom gradients that are given objects with tensors ----------------------------------------


def holding(inner: Recipe) -> Recipe:
    """Return the recipe of a framework's own custom gradient whose arguments may hold tensors.

    The tensors of objects among its arguments are hidden arguments. `inner.imported` has `holds`
    and `gather`.
    """
    imported = _imported(inner)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return inner.run(*opened(inner, args, kwargs))

    def run_primal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return inner.run_forward(*opened(inner, args, kwargs))

    return replace(
        inner,
        run=run,
        record=partial(_record_holding, inner),
        imported=replace(imported, run_primal=run_primal, apply=partial(_apply_holding, inner)),
    )


def _imported(recipe: Recipe) -> ImportedGradient:
    assert recipe.imported is not None
    return recipe.imported


def opened(inner: Recipe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Return a call's arguments without the hidden ones, which the objects among them hold."""
    if STATE not in kwargs:
        return args, kwargs
    kwargs, hidden = split(kwargs)
    return filled_with(inner, (args, kwargs), hidden)


def _record_holding(
    inner: Recipe, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recorded:
    record = inner.record
    assert record is not None
    if STATE not in kwargs:
        return record(trace, args, kwargs)
    kwargs, hidden = split(kwargs)
    trace.source.looks_into = False  # they are among the arguments
    before = {name: symbol.node for name, symbol in hidden.items()}
    floats = {n: symbol for n, symbol in hidden.items() if is_float(symbol.node.type)}
    held = [*floats.values()]
    # As leaves of the backward: what it adds to their `.grad` is their gradient.
    trace.backward.leaves += map(weakref.ref, held)
    with without_gradients(held):
        recorded = record(trace, *filled_with(inner, (args, kwargs), hidden))
    refuse_updates(trace, "its arguments", hidden, before)
    assert recorded.pull is not None  # a custom gradient has one
    pull_own, added = recorded.pull, set[str]()

    def pull(upstream: Any) -> Any:
        with without_gradients(held):
            returned = pull_own(upstream)
            gradients = {name: symbol.notes["grad"] for name, symbol in floats.items()}
        refuse_updates(trace, "its arguments", hidden, before)
        # What is added to a `.grad` is a constant: no second derivative (`has_second`).
        added.update(name for name, each in gradients.items() if each is not None)
        *plain, named = returned if kwargs else (*returned, {})
        return (*plain, {**named, STATE: {**dict.fromkeys(("", *hidden)), **gradients}})

    def has_second() -> bool:  # what is added to a `.grad` is a constant
        return bool(recorded.second_order) and not added

    return replace(recorded, pull=pull, second_order=has_second)


def _apply_holding(inner: Recipe, /, *args: Any, **kwargs: Any) -> Any:
    # The original, as it runs on its own framework. With other tensors than those of the objects,
    # copies of the objects hold these, and `gather` gives them their gradients.
    imported = _imported(inner)
    apply, gather, holds = imported.apply, imported.gather, imported.holds
    assert gather is not None
    if STATE not in kwargs:
        return apply(*args, **kwargs)
    kwargs, hidden = split(kwargs)
    state = read_state(tuple(filter(holds, flatten(args, kwargs)[0])))
    if all(hidden.get(name) is held_by(each) for name, each in state.tensors.items()):
        return apply(*args, **kwargs)
    leaves, tree = flatten(args, {**kwargs, STATE: hidden})
    places = [i for i, leaf in enumerate(leaves) if owner_of(leaf) is not None]

    def run(tensors: Sequence[Tensor]) -> Any:
        filled = replace_at(leaves, places, tensors)
        args, kwargs = opened(inner, *optree.tree_unflatten(tree, filled))
        return apply(*args, **kwargs)

    return gather(run, [leaves[i] for i in places])


def filled_with(recipe: Recipe, arguments: Arguments, hidden: dict[str, Any]) -> Arguments:
    """Return arguments with copies of the objects, which hold the tensors that are given."""
    leaves, tree = flatten(*arguments)
    holds = _imported(recipe).holds
    assert holds is not None
    places = [i for i, leaf in enumerate(leaves) if holds(leaf)]
    owner = tuple(leaves[i] for i in places)
    copies = FilledCopy(owner, read_state(owner), hidden).object
    return optree.tree_unflatten(tree, replace_at(leaves, places, copies))


@contextmanager
def without_gradients(symbols: Sequence[Any]) -> Iterator[None]:
    """Clear the `.grad` of symbols before and after code that adds to it."""
    for symbol in symbols:
        symbol.notes = {**(symbol.notes or {}), "grad": None}
    try:
        yield
    finally:
        for symbol in symbols:
            symbol.notes = {**(symbol.notes or {}), "grad": None}


class MayTakeObjects(Function):
    """A framework's own custom gradient, some of whose arguments may hold tensors."""

    def __init__(self, recipe: Recipe, prove: bool = True) -> None:
        completion = HiddenTensors(holds=_imported(recipe).holds)
        super().__init__(holding(recipe), prove=prove, completion=completion)
        completion.parameters = self.parameters

    if not TYPE_CHECKING:  # to a checker, a name that is not there is an error

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the original class, as some code still uses it as a class."""
            # A copy that is being made has no recipe yet.
            recipe = vars(self).get("recipe")
            if recipe is None or name.startswith("__") or not hasattr(recipe.origin, name):
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message, name=name, obj=self)
            return getattr(recipe.origin, name)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        # A class derived from this Function derives from the original class.
        return (self.recipe.origin,)
