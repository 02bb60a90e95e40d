"""`Function`: a function with a gradient of its own, called on any framework's tensors.

A call looks its arguments' types up and finds the framework's own function, lowered at the first
such call.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias

import numpy as np

from ..backend.finding.discovery import FUNCTION_READERS, in_use, load_awaited
from ..capture.code.table import load_dialects
from ..graph import ops
from ..graph.ir.graph import Graph, Node, freeze
from ..graph.ir.questions import crossing, note
from ..graph.ir.types import BOOL, T
from ..graph.support.class_bases import InNotebooks
from ..graph.support.params import Fused, read_fused
from ..graph.support.public_types import P, R
from ..graph.support.trees import optree
from ..lowering.function_graph import read_way
from ..trace.assertions import ORDERS, is_caught
from ..trace.coercion import array_node
from ..trace.derived.calls import CustomCall, mark, replay
from ..trace.scope.draws import FREE, Counter, keyed
from ..trace.trace import NeedsConcrete, Trace, Value, lift
from .calls.arguments import PLAIN, BoundFunction, Leaf, as_numbers, flatten
from .calls.binding import assemble
from .calls.decision import is_imported
from .calls.effects import check_apart, giving, has_containers, put_notes, put_updates
from .calls.gradients import modes_of
from .calls.recipe import Recipe, Variant
from .documents.format import unseal
from .entries import Entries
from .recipes.document import decode_function, encode_function
from .recipes.record import AppliesItself, NotCaptured
from .recipes.saved import SavedRecipe

if TYPE_CHECKING:
    from typing_extensions import Self


Tensor = Any
# How a library that builds models takes a call: by the type of what stands for a tensor to come.
CallOnPlaceholders: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_on_placeholders: dict[type, CallOnPlaceholders] = {}
# For compilers whose traces hold nothing but constants.
by_identifier: weakref.WeakValueDictionary[str, Function] = weakref.WeakValueDictionary()
_serials = itertools.count()
# Of a function whose arguments nobody knows.
ANY = inspect.Signature(
    [
        inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
)


class Function(Entries, InNotebooks, Generic[P, R]):
    """A function with its own gradient, for tensors of every framework.

    Made by `xg.custom_gradient`, `xg.function`, `xg.convert` and similar functions. Called with
    tensors of one framework, it is that framework's own custom gradient; with NumPy arrays, it
    computes the outputs, and `xg.vjp` gives the gradient.

    Examples:
        >>> f = xg.function(lambda x: xp.round(x), lambda grad_out, x: grad_out)
        >>> y, pull = xg.vjp(f, np.array([0.4, 1.6]))
        >>> y, pull(np.ones(2))[0]
        (array([0., 2.]), array([1., 1.]))

    Attributes:
        name: the name of the function that it was made of.
        native: None: what cannot be captured runs as it is, on its own framework; True: always;
            False: never.
        examples: arguments that it is tried with, where its signature alone does not tell.
        is_surrogate: whether its gradient is meant to differ from the true one.
    """

    autograph_info__: ClassVar[dict[str, Any]] = {}  # AutoGraph converts nothing here
    examples: tuple[Any, ...] | None = None
    is_surrogate: ClassVar[bool] = False

    def __init__(self, recipe: Recipe, wrapped: Any = None, prove: bool = True) -> None:
        in_use()  # compilers can neither read the discovery of backends nor load one
        parameters = parameters_of(wrapped if wrapped is not None else recipe)
        super().__init__(recipe, parameters, prove)
        self._identify()
        self.draws = FREE
        if wrapped is not None:
            functools.update_wrapper(self, wrapped, updated=())
        else:
            self.__name__ = self.name
            self.__signature__ = parameters or ANY  # a descriptor without one passes for a builtin

    def _identify(self) -> None:
        self.identifier = f"{self.name}#{next(_serials)}"
        by_identifier[self.identifier] = self

    def __repr__(self) -> str:
        named = {} if self.parameters is None else self.parameters.parameters
        empty = inspect.Parameter.empty  # types are left out
        words = ", ".join(str(p.replace(annotation=empty)) for p in named.values())
        return f"<Function {self.name}({words if self.parameters is not None else '...'})>"

    def __reduce__(self) -> Any:
        # One that a module holds pickles by name, as functions do; any other by its graphs.
        if self._is_named():
            return getattr(self, "__qualname__", "")
        data = encode_function(self, is_bare=True)
        return _rebuild, (data, self.draws.key, self._defaults, self.residuals, self.fused)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # As functions are copied, but for what they hold: a model and its parts stay together.
        if self._is_named():
            return self
        other = memo[id(self)] = self._copy()
        other.recipe = copy_recipe(self.recipe, memo)
        other._defaults = copy.deepcopy(self._defaults, memo)
        if self.is_keyed:
            other.draws = replace(self.draws, counter=Counter(self._counter.count))
        if other.recipe is not self.recipe:
            wrapped = copy.deepcopy(getattr(self, "__wrapped__", None), memo)
            vars(other)["__wrapped__"] = wrapped
            other.variants, other.facts = {}, frozenset()
        if other.recipe is not self.recipe or self._defaults:
            other._forget_entries()
        return other

    def _is_named(self) -> bool:
        """Return whether a module holds it under its name."""
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in getattr(self, "__qualname__", "").split("."):
            found = getattr(found, part, None)
        return found is self

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an object as functions do: a method with a gradient of its own.

        It runs as it is, by a copy that nobody keeps: the object may change between calls, and is
        not kept alive.
        """
        if instance is None:
            return self
        bound_to = getattr(self.recipe, "bound_to", None)
        if bound_to is not None:  # a library's own, which binds as that does
            recipe = bound_to(instance)
            if recipe is self.recipe:
                return self
            bound = Function(recipe, prove=self.prove)
            bound.native = self.native is not False
            return bound
        method = self._copy()
        method._forget_entries()
        method.native = self.native is not False
        return functools.partial(method, instance)

    def keyed(self, key: Any) -> Self:
        """Return this Function with reproducible random draws, the same on every framework.

        Examples:
            >>> draw = xg.function(lambda x: x + xp.randn_like(x), lambda grad_out, x: grad_out)
            >>> a, b = draw.keyed(7)(np.zeros(2)), draw.keyed(7)(np.zeros(2))
            >>> bool((a == b).all())
            True

        Args:
            key: an int as for `jax.random.key`, a jax key, or two uint32; the n-th call from now on
                draws from `fold_in(key, n)`.
        """
        other = self._copy()
        other.draws = keyed(key)
        return other

    def bind(self, params: Mapping[str, object] | None = None, key: Any = None) -> BoundFunction:
        """Return this Function with values for some of its arguments, and its own key.

        Examples:
            >>> spike = xg.get("triangular").under("Heaviside").bind({"width": 2.0})
            >>> y, pull = xg.vjp(spike, np.array([-0.5, 0.5]))
            >>> pull(np.ones(2))[0]
            array([0.75, 0.75])

        Args:
            params: values by the arguments' names; numbers among them are run-time numbers as in
                any call.
            key: an int as for `jax.random.key`, a jax key, or two uint32: makes the draws
                reproducible, the same on every framework. Call n draws from `fold_in(key, n)`.
                None: this Function's own draws.

        Raises:
            RuleTypeError: the Function has no argument of that name.
            RuleValueError: the key is none.
        """
        function = self if key is None else self.keyed(key)
        return BoundFunction(function, self.name, self.parameters, params or {})

    def keeping(self, residuals: str | None = None, *, fused: Fused | None = None) -> Self:
        """Return this Function with a choice of what forward keeps for backward, and of whether it
        runs as kernels: the same numbers, other bytes and time.

        Examples:
            >>> relu = xg.function(lambda x: xp.maximum(x, 0.0), lambda g, x: g * (x > 0))
            >>> xg.memory(relu, (8000,)).total, xg.memory(relu.keeping("packed"), (8000,)).total
            (8000, 1000)

        Args:
            residuals: "auto", which weighs bytes against time; "input": the inputs, of which
                backward computes all else; "mask": bools, where it needs only those; "packed": the
                same as bits, eight to a byte; "recompute": the fewest bytes, and loops run again;
                "time": in eager PyTorch besides what forward computed at some cost and backward
                would compute again, as exponentials. Where PyTorch compiles it, the compiler's own
                choice, and on backends without bits bools stay as they are. None: as before.
            fused: whether forward, what it keeps, and backward run as one compiled kernel each; see
                `xg.activation`. None: as before.

        Raises:
            RuleValueError: it is another word.
            RuleTypeError: fused is none of these.
        """
        other = self._copy()
        other._forget_entries()
        if residuals is not None:
            other.residuals = read_way(residuals, f"function {self.name!r}")
        if fused is not None:
            other.fused = read_fused(fused)
        return other

    def _drawing(self, draw_key: Callable[[], Any]) -> Self:
        """Return this Function with another generator: `draw_key` gives each call two uint32,
        perhaps of a trace.

        Examples:
            >>> draw = xg.function(lambda x: x + xp.randn_like(x), lambda grad_out, x: grad_out)
            >>> same = draw._drawing(lambda: np.array([0, 7], np.uint32))
            >>> bool((same(np.zeros(2)) == same(np.zeros(2))).all())
            True
        """
        other = self._copy()
        other.draws = replace(self.draws, generator=draw_key)
        return other

    def with_defaults(self, values: tuple[Any, ...]) -> Self:
        """Return this Function with default values for all arguments but the first.

        Examples:
            >>> clip = xg.function(lambda x, top: xp.minimum(x, top), lambda g, x, top: (g, None))
            >>> clip.with_defaults((1.0,))(np.array([0.5, 3.0]))
            array([0.5, 1. ])
        """
        other = self._copy()
        other._forget_entries()
        other._defaults = values
        if self.parameters is not None:
            first, *rest = self.parameters.parameters.values()
            own = [p.replace(default=v) for p, v in zip(rest, values, strict=True)]
            other.parameters = self.parameters.replace(parameters=[first, *own])
            other.__signature__ = other.parameters
        return other

    def _copy(self) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._identify()
        return other

    @property
    def is_keyed(self) -> bool:
        """Whether its random draws are reproducible.

        Examples:
            >>> draw = xg.function(lambda x: x + xp.randn_like(x), lambda grad_out, x: grad_out)
            >>> draw.is_keyed, draw.keyed(7).is_keyed
            (False, True)
        """
        return self.draws.counter is not None

    @property
    def _counter(self) -> Counter:
        return self.draws.counter

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the outputs for the arguments; gradients flow back by the own backward."""
        for is_reading, call_read, _ in FUNCTION_READERS:
            if is_reading():
                return call_read(self, args, kwargs)
        return self._apply(args, kwargs)

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of a call; code that calls a class by its `apply` need not change.

        Examples:
            >>> xg.convert(lambda x: x * x).apply(np.array([3.0]))
            array([9.])
        """
        return self(*args, **kwargs)

    def _apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
                return entry.run(args, self.draws)
            return self._apply_any(args, kwargs, tuple(kinds))
        return self._apply_any(args, kwargs, None)

    def _apply_any(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> Any:
        load_awaited()
        leaves, tree = flatten(args, kwargs)
        numbers = as_numbers(leaves)
        if numbers is not None:
            leaves, key = numbers, None
            args, kwargs = optree.tree_unflatten(tree, leaves)
        if any(isinstance(leaf, Value) for leaf in leaves):
            return self._inline(leaves, tree)
        load_dialects()  # what stands for tensors to come is known by then
        call = find_call(leaves)
        if call is not None:
            return call(self, args, kwargs)
        if has_containers(args, kwargs):
            with giving((args, kwargs), leaves):
                return self._find_entry(leaves, tree, key).run(leaves, self.draws)
        return self._find_entry(leaves, tree, key).run(leaves, self.draws)

    def _assume(self, trace: Trace, variant: Variant, given: Mapping[str, Any]) -> None:
        """Let the capture around it assume what this function asserts of its arguments."""
        inputs = variant.graphs.forward.inputs
        # Else no proof finds test_what_is_caught_beyond_all_samples_is_no_assertion.
        if variant.assumed and is_caught(sys._getframe(1)):
            raise trace.error(f"catches what {self.name!r} raises, which depends on values")
        for each in variant.assumed:
            (value,) = replay(trace, Graph(self.name, inputs, (each.node,)), given)
            if isinstance(value, Value) and not trace.in_backward:
                trace.assumed.append(each._replace(node=value.node))

    def _inline(self, leaves: Sequence[Any], tree: Any) -> Any:
        """Record the function's ops in the capture that its arguments belong to."""
        leaves, tree = self._complete(leaves, tree)
        trace = next(leaf.trace for leaf in leaves if isinstance(leaf, Value))
        layout = self.recipe.lay_out(self.parameters, leaves, tree)
        own = self.recipe.apply_within(trace, *layout.rebuild(leaves))
        if own is not None:
            return own[0]
        try:
            with crossing(NeedsConcrete):
                variant = self._variant_for_symbols(trace, layout, leaves)
        except AppliesItself as error:
            if not trace.in_backward:
                raise note(error.error) from error.__cause__
            # What the backward applies of the function itself has no derivative, which would go on
            # for ever.
            trace.lost_gradient = self.name
            trace.omit(ORDERS, f"the derivatives of {self.name!r} of any order")
            return self.recipe.record(trace, *layout.rebuild(leaves)).outputs  # type: ignore[attr-defined]
        except NotCaptured as error:
            raise note(error.error) from error.__cause__
        graphs = variant.graphs
        trace.omissions.update(variant.omissions)
        trace.combines |= variant.combines or bool(self.recipe.modes)
        trace.is_once |= not graphs.second_order
        given = {
            leaf.name: trace.value(lift_leaf(trace, leaf, value))
            for leaf, value in zip(layout.leaves, leaves, strict=True)
            if leaf.kind != "static"
        }
        if graphs.is_random and self.draws.counter is not None:
            raise trace.error(
                f"calls the random function {self.name!r} under a key, which counts calls one by "
                "one. Take the vjp of that function itself, or give the key to the function "
                "around it"
            )
        if graphs.is_random:
            given["key"] = trace.next_key()
        outputs = replay(trace, graphs.forward, given)
        self._assume(trace, variant, given)
        names = tuple(given)
        called = CustomCall(
            graphs.backward,
            graphs.cotangents,
            names=names,
            wrt=graphs.wrt,
            outputs=tuple(o.node for o in outputs),
            modes=modes_of(self.recipe.modes, layout),
            refused=graphs.refused,
        )
        result = assemble(variant, mark(trace, called, [given[name].node for name in names]))
        if not (variant.notes or variant.updates):
            return result
        holders = {leaf.name: each for leaf, each in zip(layout.leaves, leaves, strict=True)}
        flat = optree.tree_leaves(result, none_is_leaf=True)
        if self.recipe.copies:
            check_apart(self.recipe.subject, variant.updates, leaves)
        else:
            put_updates(
                trace, variant.updates, graphs.forward, given=given, holders=holders, outputs=flat
            )
        if variant.notes:
            put_notes(
                trace,
                variant.notes,
                graphs.forward,
                given,
                {**holders, **dict(enumerate(flat))},
                is_class=hasattr(self.recipe, "apply"),
            )
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return this Function as plain data, which `xg.from_dict` reads and `xg.save` writes as
        JSON.

        This includes the forms captured so far, one for each kind of arguments with which it was
        called; the values of optional arguments; and the key of its draws.

        Examples:
            >>> f = xg.function(lambda x: xp.round(x), lambda grad_out, x: grad_out)
            >>> y = f(np.array([0.4, 1.6]))  # captured for such an argument
            >>> xg.from_dict(f.to_dict())(np.array([2.7]))
            array([3.])

        Raises:
            TraceError: it has not been captured.
            FormatError: it has more than a document holds, or arguments or values for them that no
                document has.
        """
        return encode_function(self)


def take_placeholders(type_: type, call: CallOnPlaceholders) -> None:
    """Let `call(function, args, kwargs)` act where an argument of a Function is of this type."""
    _on_placeholders[type_] = call


def find_call(leaves: Sequence[Any]) -> CallOnPlaceholders | None:
    """Return the function that handles calls with such placeholders; None if no leaf is one."""
    for type_, call in _on_placeholders.items():
        if any(isinstance(leaf, type_) for leaf in leaves):
            return call
    return None


def _rebuild(
    data: dict[str, Any],
    key: Any,
    defaults: tuple[Any, ...] = (),
    residuals: str | None = None,
    fused: Fused | None = None,
) -> Function:
    function = restore(decode_function(unseal(data, ("function",))[1]))
    function = function.keeping(residuals, fused=fused)
    function = function.with_defaults(defaults) if defaults else function
    return function if key is None else function.keyed(key)


def restore(recipe: SavedRecipe) -> Function:
    """Return the Function of a document, captured in all the forms that were saved."""
    function = Function(recipe)
    function.__doc__ = recipe.doc
    function._defaults = tuple(recipe.defaults.values())
    if recipe.key is not None:
        function.draws = keyed(recipe.key)
    function.facts = frozenset(fact for form in recipe.forms for fact in form.facts)
    for form in recipe.forms:
        variant: Variant = form.layout
        key = (variant.layout.key, tuple(sorted(variant.facts.items())))
        function.variants.setdefault(key, variant)
    return function


def copy_recipe(recipe: Any, memo: dict[int, Any]) -> Any:
    """Return a recipe that calls copies of its objects and methods; functions stay."""
    if is_imported(recipe) or isinstance(recipe, type) or not is_dataclass(recipe):
        return recipe
    changed: dict[str, Any] = {}
    for name in [each.name for each in fields(recipe)]:
        value = getattr(recipe, name)
        # What a decorator has made stands for a function, and is copied as little as one.
        is_method = isinstance(value, types.MethodType)
        if is_method or (callable(value) and not hasattr(value, "__wrapped__")):
            copied = copy.deepcopy(value, memo)
            if copied is not value:
                changed[name] = copied
    copied_recipe: Any = recipe
    return replace(copied_recipe, **changed) if changed else recipe


def parameters_of(function: Any) -> inspect.Signature | None:
    """Return a signature, which names arguments in messages."""
    own = getattr(function, "signature", None)
    if isinstance(own, inspect.Signature):
        return own
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def lift_leaf(trace: Trace, leaf: Leaf, value: Any) -> Node:
    """Return the node of an argument; a tensor without axes is no number to the function."""
    node = lift(trace, value)
    if leaf.kind == "number" or node.op is not ops.CONST:
        return node
    number = node.attr("value")
    dtype = BOOL if isinstance(number, bool) else T
    return array_node(trace.like(), freeze(np.asarray(number)), dtype)
