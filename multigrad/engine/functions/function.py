"""`Function`: a function with its own gradient, called with tensors of any framework.

A call goes from one of these to the next, and most end at the second:

    __call__            to a compiler that reads Python code, if one does
    call_eagerly        to the entry for these types and dtypes, if there is one
    call_anew           inside a capture: the graph becomes a part of the one that is recorded;
                        with placeholders: to their library
    EntriesOfCode.find  the first such call: captured, lowered, and an entry built
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, Self, TypeAlias, TypeVar

from ...core.backend.discovery import FUNCTION_READERS, load_awaited
from ...core.functions.arguments import flatten
from ...core.functions.captures import Captures
from ...core.functions.function import FunctionBase, _rebuild, encode_function, inline
from ...core.functions.recipe import Recipe
from ...core.support.params import Fused, P, R, read_fused, read_params, read_way
from ...core.support.pickles import pickled
from ...core.support.tracebacks import shorten
from ...core.support.trees import optree
from ...core.trace.active_rules import keyed
from ...core.trace.trace import Value
from ...errors import RuleTypeError, TraceError
from ..capture.dialect import load_dialects
from ..support.public_modules import is_of_session, name_in_module
from .calls.arguments import PLAIN, as_numbers
from .calls.effects import giving, has_containers
from .calls.parameters import BoundFunction, Completion, signature_of
from .entries import EntriesOfCode

if TYPE_CHECKING:
    from .code_recipes import CodeRecipe
    from .documents.functions import SavedFunction

F = TypeVar("F", bound="Function")
# The signature of a Function whose arguments are unknown.
ANY = inspect.Signature(
    [
        inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
)


class Function(FunctionBase, Generic[P, R]):
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
        name: the name of the function that it was made from.
        native: None: code that cannot be captured runs as written, on its own framework; True: it
            always does; False: it never does.
        examples: arguments to try it with, where its signature alone does not suffice.
        is_surrogate: whether its gradient is meant to differ from the true one.
    """

    autograph_info__: ClassVar[dict[str, Any]] = {}  # AutoGraph converts nothing here
    examples: tuple[Any, ...] | None = None
    entries: EntriesOfCode

    def __init__(
        self,
        recipe: Recipe | CodeRecipe,
        wrapped: Any = None,
        prove: bool = True,
        completion: Completion | None = None,
    ) -> None:
        recipe = recipe if isinstance(recipe, Recipe) else recipe.as_recipe()
        parameters = recipe.signature if wrapped is None else signature_of(wrapped)
        if completion is None:
            completion = Completion(parameters)
        elif completion.parameters is None:
            completion.parameters = parameters
        self.name = recipe.name
        if wrapped is not None:
            functools.update_wrapper(self, wrapped, updated=())
        else:
            self.__name__ = self.name
            self.__signature__ = parameters or ANY  # a descriptor without one passes for a builtin
            self._describe(recipe)
        captures = Captures(recipe, prove, self.__module__)
        super().__init__(recipe, EntriesOfCode(captures, completion))

    def _describe(self, recipe: Recipe) -> None:
        # `__wrapped__` is left out: to those that follow it, the code alone would be the Function.
        code = recipe.origin if isinstance(recipe.origin, type) else next(iter(recipe.functions), 0)
        if hasattr(code, "__qualname__"):
            for name in ("__module__", "__qualname__", "__doc__"):
                setattr(self, name, getattr(code, name) or getattr(self, name, None))

    def replace(self, **changes: Any) -> Self:
        """Return this Function with other parts.

        Args:
            changes: `draws`, `captures`, `completion`, or any of `Options`.
        """
        function = type(self).__new__(type(self))
        function.__dict__.update(self.__dict__)
        function.draws = changes.pop("draws", self.draws)
        if changes:
            function.entries = self.entries.changed(**changes)
        function._identify()
        return function

    # --- what it is made of ---
    @property
    def document(self) -> SavedFunction | None:
        """What it was read from; None: it is made of code."""
        return self.recipe.origin if self.recipe.is_document else None

    @property
    def native(self) -> bool | None:
        return super().native

    @native.setter
    def native(self, native: bool | None) -> None:
        self.entries = self.entries.changed(native=native)

    @property
    def fused(self) -> Fused:
        """Whether its parts run as one kernel each; see `keeping`."""
        return self.entries.options.fused

    @property
    def completion(self) -> Completion:
        """What fills in the arguments that a call leaves out."""
        return self.entries.completion

    @property
    def defaults(self) -> tuple[Any, ...]:
        """What a call may leave out, and numbers that move among it."""
        return self.completion.values

    def __repr__(self) -> str:
        params = {} if self.parameters is None else self.parameters.parameters
        empty = inspect.Parameter.empty  # types are left out
        words = ", ".join(str(p.replace(annotation=empty)) for p in params.values())
        return f"<Function {self.name}({words if self.parameters is not None else '...'})>"

    def __reduce__(self) -> Any:
        # One that its module holds pickles by name, as functions do. Any other does by its graphs,
        # and so does one of a session, which no other process can import.
        name = name_in_module(self)
        if name and not is_of_session(self.__module__):
            return name
        try:
            data = encode_function(self, is_bare=True)
        except TraceError as error:
            if name:
                return name
            by_name = f"Under a name in {self.__module__}, it is pickled by that name"
            raise TraceError(f"{str(error).rstrip('.')}. {by_name}") from error
        return pickled(_rebuild, data, self.draws.key, self.defaults, self.residuals, self.fused)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # Copied by reference as functions are; but objects that the recipe holds are copied, so
        # that a copied model calls its own parts.
        if name_in_module(self):
            return self
        recipe, changes = copy_recipe(self.recipe, memo), dict[str, Any]()
        is_changed = recipe is not self.recipe
        if self.is_keyed:
            counter = self.draws.counter  # which the copy goes on from by itself
            changes["draws"] = replace(self.draws, counter=type(counter)(counter.count))
        if is_changed:
            changes["captures"] = Captures(recipe, self.captures.prove, self.captures.module)
        if is_changed or self.defaults:
            changes["completion"] = copy.deepcopy(self.completion, memo)
        function = memo[id(self)] = self.replace(**changes)
        if is_changed:
            wrapped = copy.deepcopy(getattr(self, "__wrapped__", None), memo)
            vars(function)["__wrapped__"] = wrapped
        return function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an object as plain functions do: the result is a method with its own gradient.

        It runs as written, through a new copy at each access: the object may change between calls,
        and nothing here keeps it alive.
        """
        if instance is None:
            return self
        imported = self.recipe.imported
        if imported is not None and imported.bound_to is not None:
            recipe = imported.bound_to(instance)  # as its library binds it
            if recipe is None:
                return self
            function = Function(recipe, prove=self.captures.prove)
            return function.replace(native=self.native is not False)
        method = self.replace(native=self.native is not False)
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
        return self.replace(draws=keyed(key))

    def bind(
        self, params: Mapping[str, object] | None = None, key: Any = None, **others: Never
    ) -> BoundFunction:
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
            RuleTypeError: the Function has no argument of that name, or `params` is no dict.
            RuleValueError: `key` is not a key.
        """
        if others:
            raise RuleTypeError(f"function {self.name!r}: write bind({others!r:.60}), with a dict")
        function = self if key is None else self.keyed(key)
        return BoundFunction(function, self.name, self.parameters, read_params(params))

    def keeping(self, residuals: str | None = None, *, fused: Fused | None = None) -> Self:
        """Return this Function with a choice of what forward keeps, and of running as kernels.

        The numbers stay the same; bytes and time do not.

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
            RuleValueError: `residuals` is none of these words.
            RuleTypeError: `fused` is none of these values.
        """
        choices: dict[str, Any] = {}
        if residuals is not None:
            choices["residuals"] = read_way(residuals, f"function {self.name!r}")
        if fused is not None:
            choices["fused"] = read_fused(fused)
        return self.replace(**choices)

    def with_defaults(self, values: tuple[Any, ...]) -> Self:
        """Return this Function with default values for all arguments but the first.

        Examples:
            >>> clip = xg.function(lambda x, top: xp.minimum(x, top), lambda g, x, top: (g, None))
            >>> clip.with_defaults((1.0,))(np.array([0.5, 3.0]))
            array([0.5, 1. ])
        """
        function = self.replace(completion=self.completion.with_values(values))
        if function.parameters is not None:
            function.__signature__ = function.parameters
        return function

    @property
    def is_keyed(self) -> bool:
        """Whether its random draws are reproducible.

        Examples:
            >>> draw = xg.function(lambda x: x + xp.randn_like(x), lambda grad_out, x: grad_out)
            >>> draw.is_keyed, draw.keyed(7).is_keyed
            (False, True)
        """
        return self.draws.counter is not None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the outputs for the arguments; gradients flow back by the own backward."""
        for is_reading, call_read, _ in FUNCTION_READERS:
            if is_reading():
                return call_read(self, args, kwargs)
        return self.call_eagerly(args, kwargs)

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of a call; code that calls a class by its `apply` need not change.

        Examples:
            >>> xg.convert(lambda x: x * x).apply(np.array([3.0]))
            array([9.])
        """
        return self(*args, **kwargs)

    def call_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it where no compiler reads the call: a key of types, dtypes and plain values, and
        one look-up.
        """
        try:
            if not kwargs:
                kinds: list[Any] = []
                try:
                    for value in args:
                        kind = type(value)
                        if kind is float:
                            # A run-time number: its value is not part of the key.
                            kinds.append(kind)
                        elif kind in PLAIN:
                            kinds.append((kind, value))
                        elif isinstance(value, Value):  # whose dtype is no key
                            return self.call_anew(args, kwargs, None)
                        else:
                            kinds.append((kind, value.dtype))
                    entry = self.entries.known.get(tuple(kinds))
                except (AttributeError, TypeError):  # nested, or a dtype that has no hash
                    return self.call_anew(args, kwargs, None)
                if entry is not None:
                    return entry.run(args, self.draws)
                return self.call_anew(args, kwargs, tuple(kinds))
            return self.call_anew(args, kwargs, None)
        except Exception as error:
            shorten(error)
            raise

    def call_anew(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> Any:
        """Call it with arguments for which there is no entry under this key, or that have none."""
        load_awaited()  # backends of frameworks that were imported since the last call
        leaves, tree = flatten(args, kwargs)
        numbers = as_numbers(leaves)
        if numbers is not None:
            leaves, key = numbers, None
            args, kwargs = optree.tree_unflatten(tree, leaves)
        if any(isinstance(leaf, Value) for leaf in leaves):
            return inline(self.captures, self.completion, self.draws, leaves, tree)
        if result := call_with_placeholders(self, args, kwargs, leaves):
            return result[0]
        # The original may write into the caller's own lists and dicts.
        if has_containers(args, kwargs):
            with giving((args, kwargs), leaves):
                return self.entries.find(leaves, tree, key).run(leaves, self.draws)
        return self.entries.find(leaves, tree, key).run(leaves, self.draws)

    def to_dict(self) -> dict[str, Any]:
        """Return this Function as plain data.

        `xg.from_dict` reads the data, and `xg.save` writes them as JSON. They include the forms
        captured so far, one for each kind of arguments with which it was called; the values of
        optional arguments; and the key of its draws.

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


def as_function(function: FunctionBase) -> Function[..., Any]:
    """Return a rule under an activation as a Function, which people call."""
    if isinstance(function, Function):
        return function
    result: Function[..., Any] = Function(function.recipe).replace(captures=function.captures)
    result.is_surrogate = function.is_surrogate
    return result


def uncaptured(function: F) -> F:
    """Return a Function as if it had never been called."""
    return function.replace(captures=function.captures.anew())


def copy_recipe(recipe: Recipe, memo: dict[int, Any]) -> Recipe:
    """Return a recipe that calls copies of its objects and methods; functions stay."""
    # A library's own gradient stays as its library made it.
    if recipe.copied is None or recipe.imported is not None:
        return recipe
    is_changed = False

    def copied(value: Any) -> Any:
        nonlocal is_changed
        # A decorated callable counts as a function, which is not copied.
        is_method = isinstance(value, types.MethodType)
        if not is_method and (not callable(value) or hasattr(value, "__wrapped__")):
            return value
        duplicate = copy.deepcopy(value, memo)
        is_changed = is_changed or duplicate is not value
        return duplicate

    copied_recipe = recipe.copied(copied)
    return copied_recipe if is_changed else recipe


# --- placeholders of a library that builds models (Keras tensors) ---------------------------------
CallOnPlaceholders: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
# How a library handles a call, as `call(function, args, kwargs)`, by the type of its placeholders.
# Written by `take_placeholders` as backends load; never emptied.
_on_placeholders: dict[type, CallOnPlaceholders] = {}


def take_placeholders(type_: type, call: CallOnPlaceholders) -> None:
    """Register `call(function, args, kwargs)` for calls with placeholders of this type."""
    _on_placeholders[type_] = call


def call_with_placeholders(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]
) -> tuple[Any] | None:
    """Return the result of such a call in a tuple; None: no leaf is a placeholder."""
    load_dialects()  # they register the types of placeholders
    for type_, call in _on_placeholders.items():
        if any(isinstance(leaf, type_) for leaf in leaves):
            return (call(function, args, kwargs),)
    return None
