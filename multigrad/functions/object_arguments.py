"""Functions of objects that hold tensors: a module, a layer, anything with `__call__`, a method.

Plain functions that call such an object are among them, and custom gradients that get one as an
argument. The state of an object is read at each call (`code/object_state.py`): its tensors are
hidden arguments, so that weights are never stale. They carry gradients where they are tensors of
the call's own framework, those that a backward adds to their `.grad` too. On that framework the
object itself is called, unless that was ruled out; elsewhere its tensors are constants.
"""

from __future__ import annotations

import copy
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..backend.contract import Backend
from ..backend.discovery import FUNCTION_READERS
from ..capture.copies.capture import run_or_import
from ..capture.dialect import registered_dialects
from ..capture.user_code.inspection import plain_function, wrapped_function, written_in
from ..capture.user_code.object_state import OWN, Filled, ObjectState, held_by, is_open, read_state
from ..capture.user_code.signature import called_method, name_of
from ..errors import FormatError, TraceError
from ..graph.ir.types import is_float
from ..graph.support.class_bases import dataclass
from ..graph.support.trees import optree
from ..trace.active_rules import FREE
from ..trace.trace import Trace, Value, copy_of
from .calls.arguments import Completion, flatten, owner_of, signature_of, unwrap
from .calls.recipe import Recorded, library_of
from .entries import MOST_ENTRIES
from .function import Function
from .recipes.record import CodeRecipe

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


@dataclass(frozen=True, slots=True, eq=False)
class HeldRecipe(CodeRecipe):
    """An object, or a method of one, whose tensors are hidden arguments."""

    function: Callable[..., Any]
    name: str
    native: bool | None = None
    library: str = ""

    @property
    def is_derived(self) -> bool:
        return True

    @property
    def owner(self) -> Any:
        return owner_of_method(self.function)

    @property
    def signature(self) -> inspect.Signature | None:
        return signature_of(called_method(self.function))

    def dialect(self) -> str:
        home = "" if self.library else read_state(self.owner).home
        return home or library_of(called_method(self.function), said=self.library)

    def functions(self) -> tuple[Any, ...]:
        return (self.function,)

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        kwargs, given = split(kwargs)
        state = read_state(self.owner)
        trace.source.looks_into = False  # they are among the arguments
        made = len(trace.source.witness.made)
        symbols = {name: copy_of(symbol) for name, symbol in given.items()}
        filled = Filled(self.owner, state, symbols)
        filled.mention(trace)
        held = slice(made, len(trace.source.witness.made))
        called, library = self._of(filled), self.library or state.home
        route = trace.source.routes.get(library)
        if is_intercepted(called):
            with written_in(trace, (library,)):
                outputs = called(*args, **kwargs)
        else:
            whole = (self._call_with, (given, *args)) if given else None
            # Hooks run around the method, in what calls it.
            hooks = (getattr(called, name, None) for name in HOOKS)
            method = called if any(hooks) else called_method(called)
            outputs = run_or_import(library, method, trace, args, kwargs, whole=whole)
        before = {name: symbol.node for name, symbol in given.items()}
        refuse_updates(trace, f"a {type(self.owner).__name__}", symbols, before)
        self._check(filled, trace)
        # Caches of the library may hold what it refused.
        if route != trace.source.routes.get(library):
            del trace.source.witness.made[held]
        return Recorded(outputs, None)

    def _call_with(self, given: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self._of(Filled(self.owner, read_state(self.owner), given))(*args, **kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        kwargs, given = split(kwargs)
        state = read_state(self.owner)
        now = {name: held_by(own) for name, own in state.tensors.items()}
        if all(given.get(name, own) is own for name, own in now.items()):
            return Recorded(self.function(*args, **kwargs), None)
        filled = Filled(self.owner, state, given)
        outputs = self._of(filled)(*args, **kwargs)
        self._check(filled, None)
        return Recorded(outputs, None)

    def _of(self, filled: Filled) -> Any:
        method = self.function
        is_call = isinstance(method, types.MethodType) and method.__name__ == "call"
        if isinstance(method, types.MethodType) and not (is_call and is_intercepted(filled.copy)):
            return types.MethodType(method.__func__, filled.copy)
        return filled.copy

    def _check(self, filled: Filled, trace: Trace | None) -> None:
        # The object is a copy: what the code stores in it would be lost.
        change = filled.changed()
        if change and trace is not None:
            raise trace.error(f"{change}, which a graph does not do")
        if change:
            raise TraceError(f"function {self.name!r} {change}, which only the object itself does")


def is_intercepted(called: Any) -> bool:
    """Return whether a library passes a call of this object with symbols on to multigrad."""
    keepers = (dialect.calls.keeps for dialect in registered_dialects().values())
    return any(keeps is not None and keeps(called) for keeps in keepers)


def split(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the user's own keywords, and the tensors for the objects by name."""
    # The empty name is that of the `Structure`.
    given = {name: held for name, held in kwargs.get(STATE, {}).items() if name}
    return {name: each for name, each in kwargs.items() if name != STATE}, given


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
    """Completes a call by the tensors that objects hold."""

    def __init__(self, parameters: inspect.Signature | None, values: tuple[Any, ...] = ()) -> None:
        super().__init__(parameters, values)
        self._structures: dict[Any, Structure] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied: Any = super().__deepcopy__(memo)
        copied._structures = {}
        return copied

    def structure(self, state: ObjectState) -> Structure:
        """Return the structure that represents a state; equal states have the same one."""
        # Equal states then get new structures, and are captured again.
        if len(self._structures) >= MOST_ENTRIES:
            self._structures.clear()
        return self._structures.setdefault(state.key, Structure())

    def with_state(
        self, leaves: Sequence[Any], tree: Any, state: ObjectState, is_inside: bool = False
    ) -> tuple[Sequence[Any], Any]:
        """Return the leaves of a call with those of its objects, and their nesting.

        Args:
            is_inside: the objects hold symbols of a capture around it.
        """
        args, kwargs = optree.tree_unflatten(tree, leaves)
        owners = (owner_of(leaf) for leaf in leaves if not isinstance(leaf, Value))
        backend = next((owner for owner in owners if owner is not None), None)
        held = {
            name: own if is_inside else on_backend(backend, held_by(own))
            for name, own in state.tensors.items()
        }
        return flatten(args, {**kwargs, STATE: {"": self.structure(state), **held}})


class TensorsOfOwner(HiddenTensors):
    """Completes a call of an object, or of a method, by the tensors that the object holds."""

    def __init__(self, called: Callable[..., Any]) -> None:
        super().__init__(None)
        self.called = called

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied: Any = super().__deepcopy__(memo)
        copied.called = copy.deepcopy(self.called, memo)
        return copied

    @property
    def owner(self) -> Any:
        return owner_of_method(self.called)

    def is_needed(self, leaves: Sequence[Any]) -> bool:
        return True

    def complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        if STATE in optree.tree_unflatten(tree, leaves)[1]:
            return leaves, tree
        return self.with_state(leaves, tree, read_state(self.owner))

    def key(self, leaves: Sequence[Any], tree: Any) -> tuple[Any, ...]:
        return (self.structure(read_state(self.owner)),)


class OfObject(Function):
    """A Function whose hidden arguments are the tensors that an object holds."""

    completion: TensorsOfOwner

    def __init__(
        self, function: Callable[..., Any], native: bool | None, library: str, prove: bool
    ) -> None:
        recipe = HeldRecipe(function, name_of(function), native, library)
        completion = TensorsOfOwner(function)
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
            given = {owner.name for leaf in leaves if (owner := owner_of(leaf)) is not None}
            is_symbolic = any(isinstance(leaf, Value) for leaf in leaves)
            if not is_symbolic and given == {read_state(self.completion.owner).home}:
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
    own = owner_of(tensor)
    if backend is None or own is None or own is backend:
        return tensor
    return backend.tensors.from_numpy(own.tensors.to_numpy(tensor))


# --- custom gradients that are given objects with tensors ----------------------------------------


def _of_own(name: str) -> Any:
    return property(lambda recipe: getattr(recipe.own, name))


# The attributes that `HoldingRecipe` takes from the recipe that it wraps; set below the class.
TOLD = (
    *("name", "native", "copies", "modes", "gives_tangents", "signature", "dialect", "functions"),
    *("is_derived", "bound_to", "function_class", "fixed_names", "has_setup", "is_checked"),
    *("makes_arrays_of_numbers", "looks_at_values", "fused", "refused"),
)


@dataclass(frozen=True, slots=True, eq=False)
class HoldingRecipe(CodeRecipe):
    """A framework's own custom gradient, whose arguments' objects give hidden arguments.

    Attributes:
        own: its recipe, which knows `holds(value)` and `gather(run, tensors)`.
    """

    own: Any

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        if STATE not in kwargs:
            return self.own.record(trace, args, kwargs)
        kwargs, given = split(kwargs)
        trace.source.looks_into = False  # they are among the arguments
        before = {name: symbol.node for name, symbol in given.items()}
        floats = {n: symbol for n, symbol in given.items() if is_float(symbol.node.type)}
        held = [*floats.values()]
        # As leaves of the backward: what it adds to their `.grad` is their gradient.
        trace.backward.leaves += map(weakref.ref, held)
        with without_gradients(held):
            recorded = self.own.record(trace, *self.filled((args, kwargs), given))
        refuse_updates(trace, "its arguments", given, before)
        assert recorded.pull is not None  # a custom gradient has one
        own, added = recorded.pull, set[str]()

        def pull(upstream: Any) -> Any:
            with without_gradients(held):
                returned = own(upstream)
                found = {name: symbol.notes["grad"] for name, symbol in floats.items()}
            refuse_updates(trace, "its arguments", given, before)
            # What is added to a `.grad` is a constant: no second derivative (`has_second`).
            added.update(name for name, each in found.items() if each is not None)
            *plain, named = returned if kwargs else (*returned, {})
            return (*plain, {**named, STATE: {**dict.fromkeys(("", *given)), **found}})

        def has_second() -> bool:  # what is added to a `.grad` is a constant
            return bool(recorded.second_order) and not added

        return replace(recorded, pull=pull, second_order=has_second)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        if STATE not in kwargs:
            return self.own.run(args, kwargs)
        kwargs, given = split(kwargs)
        return self.own.run(*self.filled((args, kwargs), given))

    def run_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if STATE in kwargs:
            kwargs, given = split(kwargs)
            args, kwargs = self.filled((args, kwargs), given)
        return self.own.run_forward(args, kwargs)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the original, as it runs on its own framework."""
        # With other tensors than those of the objects, copies of the objects hold these, and
        # `gather` gives them their gradients.
        if STATE not in kwargs:
            return self.own.apply(*args, **kwargs)
        kwargs, given = split(kwargs)
        state = self.state_of((args, kwargs))
        if all(given.get(name) is held_by(own) for name, own in state.tensors.items()):
            return self.own.apply(*args, **kwargs)
        leaves, tree = flatten(args, {**kwargs, STATE: given})
        places = [i for i, leaf in enumerate(leaves) if owner_of(leaf) is not None]

        def run(tensors: Sequence[Tensor]) -> Any:
            filled = list(leaves)
            for i, tensor in zip(places, tensors, strict=True):
                filled[i] = tensor
            inner_args, inner_kwargs = optree.tree_unflatten(tree, filled)
            inner_kwargs, inner = split(inner_kwargs)
            args, kwargs = self.filled((inner_args, inner_kwargs), inner)
            return self.own.apply(*args, **kwargs)

        return self.own.gather(run, [leaves[i] for i in places])

    def objects(self, arguments: Arguments) -> list[tuple[int, Any]]:
        leaves, _ = flatten(*arguments)
        return [(i, leaf) for i, leaf in enumerate(leaves) if self.own.holds(leaf)]

    def state_of(self, arguments: Arguments) -> ObjectState:
        return read_state(tuple(each for _, each in self.objects(arguments)))

    def filled(self, arguments: Arguments, given: dict[str, Any]) -> Arguments:
        """Return arguments with copies of the objects, which hold the tensors that are given."""
        places = self.objects(arguments)
        owner = tuple(each for _, each in places)
        copies = Filled(owner, read_state(owner), given).copy
        leaves, tree = flatten(*arguments)
        for (i, _), copied in zip(places, copies, strict=True):
            leaves[i] = copied
        return optree.tree_unflatten(tree, leaves)


# As properties, which ask the wrapped recipe each time.
for _name in TOLD:
    setattr(HoldingRecipe, _name, _of_own(_name))


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


class TensorsOfArguments(HiddenTensors):
    """Completes a call by the tensors that objects among its arguments hold."""

    def __init__(self, recipe: HoldingRecipe) -> None:
        super().__init__(None)
        self.recipe = recipe

    def is_needed(self, leaves: Sequence[Any]) -> bool:
        return bool(self.values) or any(map(self.recipe.own.holds, leaves))

    def complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        args, kwargs = optree.tree_unflatten(tree, leaves)
        if STATE in kwargs or not self.is_needed(leaves):
            return leaves, tree
        is_inside = any(isinstance(leaf, Value) for leaf in leaves)
        # The tensors of objects may be symbols only inside a capture.
        state = self.recipe.state_of((args, kwargs))
        if is_inside and not all(isinstance(own, Value) for own in state.tensors.values()):
            return leaves, tree  # what is no symbol of the capture around is a constant there
        return self.with_state(leaves, tree, state, is_inside)

    def key(self, leaves: Sequence[Any], tree: Any) -> tuple[Any, ...]:
        if not self.is_needed(leaves):
            return ()
        return (self.structure(self.recipe.state_of(optree.tree_unflatten(tree, leaves))),)


class MayTakeObjects(Function):
    """A framework's own custom gradient, some of whose arguments may hold tensors."""

    recipe: HoldingRecipe

    def __init__(self, recipe: Any, prove: bool = True) -> None:
        holding = HoldingRecipe(recipe)
        completion = TensorsOfArguments(holding)
        super().__init__(holding, prove=prove, completion=completion)
        completion.parameters = self.parameters

    if not TYPE_CHECKING:  # to a checker, a name that is not there is an error

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the original class, as some code still uses it as a class."""
            original = getattr(vars(self).get("recipe"), "function_class", None)
            if original is None or name.startswith("__") or not hasattr(original, name):
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message, name=name, obj=self)
            return getattr(original, name)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        # A class derived from this Function derives from the original class.
        return (self.recipe.own.function_class,)
