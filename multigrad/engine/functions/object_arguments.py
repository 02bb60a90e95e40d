"""Custom gradients of a framework that are given objects with tensors, such as modules.

The tensors of these objects are hidden arguments (`object_function.py`). What a backward adds to
their `.grad` is their gradient, too. The code gets copies of the objects, with the call's tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.functions.arguments import flatten, owner_of, replace_at
from ...core.functions.function import Function
from ...core.functions.parameters import Completion
from ...core.functions.recipe import ImportedGradient, Recipe, Recorded
from ...core.ir.op import is_float
from ...core.support.trees import Tensor, optree
from ...core.trace.source import NOTES
from ...core.trace.trace import Trace
from ..capture.user_code.object_state import FilledCopy, held_by, read_state
from .object_function import STATE, HiddenTensors, refuse_updates, split_hidden

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
    trace: Trace,
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
