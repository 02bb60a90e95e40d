"""Functions of objects that hold tensors: a module, a layer, anything with `__call__`, a method.

Plain functions that call such an object are among them. Its tensors are hidden arguments, and carry
gradients where they are tensors of the call's own framework. On that framework the object itself is
called, unless that was ruled out; elsewhere its tensors are constants.
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

from ...core.backend.contract import Backend
from ...core.backend.discovery import FUNCTION_READERS
from ...core.backend.values import owner_of
from ...core.functions.arguments import flatten
from ...core.functions.function import MOST_ENTRIES
from ...core.functions.recipe import Options, Recipe, Recorded, library_of
from ...core.ir.op import is_float
from ...core.rules.signature import called_method, name_of
from ...core.support.trees import Tensor, optree
from ...core.trace.active_rules import FREE
from ...core.trace.source import NOTES
from ...core.trace.trace import Value, copy_of
from ...errors import FormatError, TraceError
from ..capture.copies.run_or_import import run_or_import
from ..capture.dialect import registered_dialects
from ..capture.user_code.inspection import plain_function, wrapped_function
from ..capture.user_code.libraries import OWN, written_in
from ..capture.user_code.object_state import FilledCopy, ObjectState, held_by, is_open, read_state
from ..trace.code_trace import CodeTrace
from .calls.arguments import replace_at, unwrap
from .calls.imported_gradients import ImportedGradient
from .calls.parameters import Completion, signature_of
from .function import Function

HOOKS = ("_forward_hooks", "_forward_pre_hooks")  # of a module


class ObjectFunction(Function):
    """A Function whose hidden arguments are the tensors that an object holds."""

    completion: HiddenTensors

    def __init__(
        self, function: Callable[..., Any], native: bool | None, library: str, prove: bool
    ) -> None:
        recipe = recipe_of_object(function, name_of(function), native=native, library=library)
        super().__init__(recipe, called_method(function), prove, HiddenTensors(function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(is_reading() for is_reading, _, _ in FUNCTION_READERS):
            return self.original(*args, **kwargs)  # whose state a compiler guards
        return self.call_eagerly(args, kwargs)

    def call_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.native is not False and self.draws is FREE:
            leaves = [unwrap(leaf) for leaf in flatten(args, kwargs)[0]]
            backends = {each.name for leaf in leaves if (each := owner_of(leaf)) is not None}
            is_symbolic = any(isinstance(leaf, Value) for leaf in leaves)
            if not is_symbolic and backends == {read_state(owner_of_method(self.original)).home}:
                return self.original(*args, **kwargs)
        return super().call_eagerly(args, kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Raise `FormatError`: no document holds an object."""
        raise FormatError(
            f"function {self.name!r} reads the tensors of an object at each call, which no "
            "document holds. Make a function that takes them as arguments"
        )

    @property
    def original(self) -> Callable[..., Any]:
        return self.completion.called


def recipe_of_object(
    function: Callable[..., Any], name: str, *, native: bool | None = None, library: str = ""
) -> Recipe:
    """Return the recipe of an object, or of a method of one, whose tensors are hidden arguments.

    `library`: what its author says that it is written in.
    """
    owner, method = owner_of_method(function), called_method(function)

    def home(called: str | None) -> str:
        return read_state(owner).home or library_of((method,), "", called)

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return _record_object(function, library, trace, args, kwargs)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        kwargs, hidden = split_hidden(kwargs)
        state = read_state(owner)
        own_tensors = {name: held_by(holder) for name, holder in state.tensors.items()}
        # With its own tensors the object itself runs, with others a copy that holds these.
        if all(hidden.get(name, tensor) is tensor for name, tensor in own_tensors.items()):
            return Recorded(function(*args, **kwargs), None)
        filled = FilledCopy(owner, state, hidden)
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
        written_in=library or home,
        signature=signature_of(method),
        is_derived=True,
        copied=copied,
        options=Options(native=native),
    )


def _record_object(
    function: Callable[..., Any],
    said: str,
    trace: CodeTrace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recorded:
    kwargs, hidden = split_hidden(kwargs)
    owner = owner_of_method(function)
    state = read_state(owner)
    library = said or state.home
    source = trace.source
    source.looks_into = False  # the tensors of the object are among the arguments
    # The copy has symbols of its own, as code that updates one in place gives it another node.
    start = len(source.witness.made)
    symbols = {name: copy_of(symbol) for name, symbol in hidden.items()}
    filled = FilledCopy(owner, state, symbols)
    filled.mention(trace)
    of_copy = slice(start, len(source.witness.made))
    route = source.routes.get(library)
    outputs = _call_filled(trace, function, filled, library, args, kwargs=kwargs, hidden=hidden)
    nodes = {name: symbol.node for name, symbol in hidden.items()}
    refuse_updates(trace, f"a {type(owner).__name__}", symbols, nodes)
    # The object is a copy: what the code stores in it would be lost.
    if change := filled.changed():
        raise trace.error(f"{change}, which a graph does not do")
    filled.added(drops=True)
    # Another route: the library refused the copy and then imported the method. Its caches may hold
    # symbols of that copy, which the witness would take for ones that the code has stored.
    if route != source.routes.get(library):
        del source.witness.made[of_copy]
    return Recorded(outputs, None)


def _call_filled(
    trace: CodeTrace,
    function: Callable[..., Any],
    filled: FilledCopy,
    library: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    hidden: dict[str, Any],
) -> Any:
    called = _method_of(function, filled)
    if is_intercepted(called):
        with written_in(trace, (library,)):
            return called(*args, **kwargs)

    # A library that imports the method traces tensors of its own, which it passes as arguments.
    def call_with(tensors: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        owner = owner_of_method(function)
        copied = FilledCopy(owner, read_state(owner), tensors)
        return _method_of(function, copied)(*args, **kwargs)

    whole = (call_with, (hidden, *args)) if hidden else None
    # Hooks run around the method, in what calls it.
    has_hooks = any(getattr(called, name, None) for name in HOOKS)
    method = called if has_hooks else called_method(called)
    return run_or_import(library, method, trace, args, kwargs, whole=whole)


def _method_of(function: Callable[..., Any], filled: FilledCopy) -> Any:
    # What `function` is on the copy: the same method of it, or the copy, as the object is called.
    if not isinstance(function, types.MethodType):
        return filled.object
    # A library that passes calls of an object on does not so for its `call`, as Keras for a layer.
    if function.__name__ == "call" and is_intercepted(filled.object):
        return filled.object
    return types.MethodType(function.__func__, filled.object)


def is_intercepted(called: Any) -> bool:
    """Return whether a library passes a call of this object with symbols on to multigrad."""
    call_tables = (dialect.calls for dialect in registered_dialects().values())
    return any(calls.keeps is not None and calls.keeps(called) for calls in call_tables)


# --- tensors of objects as hidden arguments of a call ---------------------------------------------
# The state of an object is read at each call (`user_code/object_state.py`), so that weights are
# never stale. `HiddenTensors` adds its tensors to the call as one more keyword, and a `Structure`
# that stands for all else that it holds:
#     layer(x)    ->    (x), {"~": {"": Structure, "weight": ..., "inner.bias": ...}}

# The name of the hidden argument, which sorts behind all identifiers.
STATE = "~"


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


class Structure:
    """A static argument that stands for all that objects hold besides their tensors."""

    __slots__ = ("__weakref__",)


class HiddenTensors(Completion):
    """Completes a call by the tensors that objects hold.

    Attributes:
        called: the object, or the method of one, that is called, and whose tensors are meant.
        holds: whether an argument holds tensors, which are meant then; None: those of `called`.
    """

    def __init__(self, called: Any = None, holds: Callable[[Any], bool] | None = None) -> None:
        super().__init__(None)
        self.called, self.holds = called, holds
        self._structures: dict[Any, Structure] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other: Any = super().__deepcopy__(memo)
        other._structures = {}
        other.called = copy.deepcopy(self.called, memo)
        return other

    def is_needed(self, leaves: Sequence[Any]) -> bool:
        return self.holds is None or bool(self.values) or any(map(self.holds, leaves))

    def complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        args, kwargs = optree.tree_unflatten(tree, leaves)
        if STATE in kwargs or not self.is_needed(leaves):
            return leaves, tree
        is_inside = self.holds is not None and any(isinstance(leaf, Value) for leaf in leaves)
        state = self._read(leaves)
        if is_inside and not all(isinstance(each, Value) for each in state.tensors.values()):
            return leaves, tree  # what is no symbol of the capture around is a constant there
        backends = (owner_of(leaf) for leaf in leaves if not isinstance(leaf, Value))
        home = next((each for each in backends if each is not None), None)
        tensors = {
            name: holder if is_inside else on_backend(home, held_by(holder))
            for name, holder in state.tensors.items()
        }
        return flatten(args, {**kwargs, STATE: {"": self._structure(state), **tensors}})

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


def on_backend(backend: Backend | None, tensor: Tensor) -> Tensor:
    """Return a tensor of a call's framework; one of another framework becomes a constant there."""
    owner = owner_of(tensor)
    if backend is None or owner is None or owner is backend:
        return tensor
    return backend.tensors.from_numpy(owner.tensors.to_numpy(tensor))


def split_hidden(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the user's own keywords, and the tensors for the objects by name."""
    # The empty name is that of the `Structure`.
    hidden = {name: tensor for name, tensor in kwargs.get(STATE, {}).items() if name}
    return {name: value for name, value in kwargs.items() if name != STATE}, hidden


def refuse_updates(
    trace: CodeTrace, whose: str, symbols: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Raise if the code has updated a tensor of an object in place."""
    for name, symbol in symbols.items():
        if symbol.node is not before[name]:
            raise trace.error(
                f"updates {name!r} of {whose} in place, which a graph does not do. A module in "
                "training may: call its .eval() first"
            )


# --- custom gradients of a framework that are given objects with tensors --------------------------
# The tensors of these objects are hidden arguments (`HiddenTensors`). What a backward adds to
# their `.grad` is their gradient, too. The code gets copies of the objects, with the call's
# tensors.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # by position, and by name


class MayTakeObjects(Function):
    """A framework's own custom gradient, some of whose arguments may hold tensors."""

    def __init__(self, recipe: Recipe, prove: bool = True) -> None:
        completion = HiddenTensors(holds=_imported(recipe).holds)
        own_recipe = recipe_taking_objects(recipe, completion)
        super().__init__(own_recipe, prove=prove, completion=completion)

    def call_anew(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> Any:
        if not (args or kwargs) and isinstance(self.recipe.origin, type):
            parameters = () if self.parameters is None else self.parameters.parameters.values()
            if any(p.default is p.empty for p in parameters):
                return self.recipe.origin()  # an instance, about which its framework warns
        return super().call_anew(args, kwargs, key)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self.recipe.origin)

    if not TYPE_CHECKING:  # to a checker, a name that is not there is an error

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the original class, as some code still uses it as a class."""
            # A copy that is being made has no entries yet.
            origin = self.recipe.origin if "entries" in vars(self) else None
            if origin is None or name.startswith("__") or not hasattr(origin, name):
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message, name=name, obj=self)
            return getattr(origin, name)

        def __setattr__(self, name: str, value: Any) -> None:
            """Set an attribute of the original class, but those that this Function itself has."""
            # The identifier is the last that a Function is given.
            origin = self.recipe.origin if "identifier" in vars(self) else None
            is_own = name in vars(self) or hasattr(type(self), name)
            if is_own or origin is None:
                super().__setattr__(name, value)
            elif callable(part := getattr(origin, name, None)) and part in self.recipe.functions:
                raise AttributeError(
                    f"{self.recipe.subject} has been converted: set {name!r} of the class before",
                    name=name,
                    obj=self,
                )
            else:
                setattr(origin, name, value)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        # A class derived from this Function derives from the original class.
        return (self.recipe.origin,)


def recipe_taking_objects(inner: Recipe, completion: Completion) -> Recipe:
    """Return the recipe of a framework's own custom gradient whose arguments may hold tensors.

    The tensors of these are hidden arguments. `inner.imported` has `holds` and `gather`;
    `completion` is told when the code writes to these arguments.
    """
    imported = _imported(inner)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return inner.run(*without_hidden(inner, args, kwargs))

    def run_primal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return inner.run_forward(*without_hidden(inner, args, kwargs))

    return replace(
        inner,
        run=run,
        record=partial(_record_taking_objects, inner, completion),
        imported=replace(
            imported, run_primal=run_primal, apply=partial(_apply_taking_objects, inner)
        ),
    )


def _imported(recipe: Recipe) -> ImportedGradient:
    assert recipe.imported is not None
    return recipe.imported


def without_hidden(inner: Recipe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Return a call's arguments without the hidden ones, which the objects among them hold."""
    if STATE not in kwargs:
        return args, kwargs
    kwargs, hidden = split_hidden(kwargs)
    return with_tensors(inner, (args, kwargs), hidden)[0]


def _record_taking_objects(
    inner: Recipe,
    completion: Completion,
    trace: CodeTrace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recorded:
    record = inner.record
    assert record is not None
    if STATE not in kwargs:
        return record(trace, args, kwargs)
    kwargs, hidden = split_hidden(kwargs)
    trace.source.looks_into = False  # they are among the arguments
    nodes = {name: symbol.node for name, symbol in hidden.items()}
    floats = {n: symbol for n, symbol in hidden.items() if is_float(symbol.node.type)}
    float_symbols = [*floats.values()]
    trace.backward.leaves += map(weakref.ref, float_symbols)
    (args, kwargs), filled = with_tensors(inner, (args, kwargs), hidden)
    with without_gradients(float_symbols):
        recorded = record(trace, args, kwargs)

    def refuse_effects(*, is_last: bool) -> None:
        refuse_updates(trace, "its arguments", hidden, nodes)
        if change := filled.changed(may_add=True):
            completion.is_written_to = True
            raise trace.error(f"{change}, which a graph does not do")
        if cache := filled.added(drops=is_last):  # once its code has run, the object has it
            trace.omit(NOTES, cache)

    refuse_effects(is_last=False)
    assert recorded.pull is not None  # a custom gradient has one
    pull_own, added_names = recorded.pull, set[str]()

    def pull(upstream: Any) -> Any:
        with without_gradients(float_symbols):
            returned = pull_own(upstream)
            gradients = {name: symbol.notes["grad"] for name, symbol in floats.items()}
        refuse_effects(is_last=True)
        added_names.update(name for name, each in gradients.items() if each is not None)
        *positional, by_name = returned if kwargs else (*returned, {})
        return (*positional, {**by_name, STATE: {**dict.fromkeys(("", *hidden)), **gradients}})

    def has_second() -> bool:  # what is added to a `.grad` is a constant
        return bool(recorded.second_order) and not added_names

    return replace(recorded, pull=pull, second_order=has_second)


def _apply_taking_objects(inner: Recipe, /, *args: Any, **kwargs: Any) -> Any:
    # The original, as it runs on its own framework. With other tensors than those of the objects,
    # copies of the objects hold these, and `gather` gives them their gradients.
    imported = _imported(inner)
    apply, gather, holds = imported.apply, imported.gather, imported.holds
    assert gather is not None
    if STATE not in kwargs:
        return apply(*args, **kwargs)
    kwargs, hidden = split_hidden(kwargs)
    state = read_state(tuple(filter(holds, flatten(args, kwargs)[0])))
    if all(hidden.get(name) is held_by(each) for name, each in state.tensors.items()):
        return apply(*args, **kwargs)
    leaves, tree = flatten(args, {**kwargs, STATE: hidden})
    places = [i for i, leaf in enumerate(leaves) if owner_of(leaf) is not None]

    def run(tensors: Sequence[Tensor]) -> Any:
        new_leaves = replace_at(leaves, places, tensors)
        args, kwargs = without_hidden(inner, *optree.tree_unflatten(tree, new_leaves))
        return apply(*args, **kwargs)

    return gather(run, [leaves[i] for i in places])


def with_tensors(
    recipe: Recipe, arguments: Arguments, hidden: dict[str, Any]
) -> tuple[Arguments, FilledCopy]:
    """Return arguments with copies of the objects, which hold the tensors that are given."""
    leaves, tree = flatten(*arguments)
    holds = _imported(recipe).holds
    assert holds is not None
    places = [i for i, leaf in enumerate(leaves) if holds(leaf)]
    owner = tuple(leaves[i] for i in places)
    filled = FilledCopy(owner, read_state(owner), hidden)
    return optree.tree_unflatten(tree, replace_at(leaves, places, filled.object)), filled


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
