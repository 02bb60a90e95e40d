"""`xg.opaque`: code that nobody can look into, with its own backward, in every framework.

It runs on NumPy arrays. In a framework it is a guest, which the framework's own autodiff and
compiler call back; what it returns is declared, so that they know before it runs.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...core.backend.contract import Backend
from ...core.backend.discovery import backend_of, load_backend
from ...core.backend.values import owner_of
from ...core.functions.arguments import Layout, flatten
from ...core.functions.function import FunctionBase
from ...core.functions.recipe import (
    GraphSource,
    NotCaptured,
    Options,
    Recipe,
    Recorded,
    Variant,
    assemble,
)
from ...core.ir.op import FLOATS, dtype_name
from ...core.lowering.checks import find_lacking, refuse_lacking
from ...core.lowering.forwards import Forward
from ...core.lowering.lower import lower_graphs
from ...core.ops.numerics import as_numpy_dtype
from ...core.rules.activation import without_rule
from ...core.rules.activation_function import put_under
from ...core.rules.context import RuleInForce
from ...core.rules.signature import name_of, refuse_class
from ...core.rules.vjp import vjp_leaves
from ...core.support.threads import build_once, make_lock
from ...core.support.trees import optree
from ...core.trace.active_rules import FREE, KeySource
from ...core.trace.lookups import at_present
from ...errors import GradientError, MultigradError, RuleTypeError, TraceError, UnsupportedOp
from ..backend.guest import Kind, kind_of
from ..functions.calls.arguments import one_backend, replace_at, unwrap
from ..functions.calls.as_written import tensors_among
from ..functions.calls.gradient_matching import match_gradients
from ..functions.calls.imported_gradients import OpaqueCalls
from ..functions.calls.parameters import signature_of
from ..functions.custom_gradient import refuse_rule
from ..functions.decision import ELSEWHERE, decide_call
from ..functions.function import Function, as_function
from ..lowering.plain_functions import PlainFunctions, without_autodiff
from .guest_function import GuestFunction, LatestOutputs, OutputTree, Trials, cross

Array: TypeAlias = np.ndarray[Any, Any]
ONE = optree.tree_structure(0, none_is_leaf=True)


class Result(NamedTuple):
    """A shape, None where a length is not known yet, and a dtype's name."""

    shape: tuple[int | None, ...]
    dtype: str


def opaque(
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    *,
    result: Any,
    batched: bool = False,
) -> Function[..., Any]:
    """Return a Function of code that runs on NumPy arrays: C, SciPy, a solver, a service.

    On a framework's tensors, its own autodiff carries the gradient, and its compiler calls back
    into the code: `jax.jit`, `tf.function` (but not XLA) and `torch.compile`, without a graph
    break.

    Examples:
        >>> from scipy.special import gammaln, digamma
        >>> log_gamma = xg.opaque(gammaln, lambda grad_out, x: grad_out * digamma(x), result="x")
        >>> y, pull = xg.vjp(log_gamma, np.array([1.0, 4.0]))
        >>> pull(np.ones(2))[0].round(4)
        array([-0.5772,  1.2561])

    Args:
        forward: `forward(*args)` returns an array, or a nesting of arrays. Arrays in its arguments
            cannot be written to. It is called again as often as a framework likes.
        backward: `backward(grad_out, *args)` returns one gradient per argument (a bare one for one
            argument, None where there is none), as for `xg.function`; without it there is none.
        result: what forward returns, nested as that is: the name of the argument whose shape and
            dtype it has, a pair of shape and dtype, or anything that has both; or a function of
            the arguments, with a `shape` and a `dtype` in place of each array, that returns these.
            In a graph of TensorFlow a length may be None.
        batched: whether both take arrays with more axes in front, the same for all, and keep them:
            `vmap` calls them once then, in a loop otherwise.

    Raises:
        TypeError: forward, backward or result is none; forward is a class or a rule.
        RuleTypeError: at a call: forward returns something else than `result` says.
        GradientError: at a call: a gradient has another shape than its argument, or none exists.
    """
    refuse_class(forward)
    refuse_rule(forward)
    if backward is not None and not callable(backward):
        raise TypeError(f"expected a function, got {type(backward).__name__} {backward!r:.40}")
    code = OpaqueCode(forward, backward, result, batched, name_of(forward))
    code.check_result()
    return Function(recipe_of_opaque(code), forward, prove=False)


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueCode:
    """A forward and a backward of arrays, of which nothing is captured."""

    forward: Callable[..., Any]
    backward: Callable[..., Any] | None
    result: Any
    is_batched: bool
    name: str

    @property
    def subject(self) -> str:
        return f"function {self.name!r}"

    def check_result(self) -> None:
        signature = self.signature
        for each in [] if callable(self.result) else _flat(self.result)[0]:
            names = [] if signature is None else list(signature.parameters)
            if isinstance(each, str) and signature is not None and each not in names:
                raise TypeError(
                    f"result={each!r} is no argument of {self.name}; it has {', '.join(names)}"
                )
            if not isinstance(each, str):
                _as_result(self.subject, each)

    @property
    def signature(self) -> inspect.Signature | None:
        return signature_of(self.forward)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        args, kwargs = _frozen(args, kwargs)
        outputs = optree.tree_map(np.array, self.call(args, kwargs))  # it may hold on to its own
        return Recorded(outputs, lambda upstream: self.pull(upstream, args, kwargs))

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outputs = self.forward(*args, **kwargs)
        kinds, declared = self.declared(args, kwargs)
        flat, actual = optree.tree_flatten(outputs, none_is_leaf=True)
        self._compare(flat, actual, kinds, declared)
        return optree.tree_unflatten(actual, list(map(np.asarray, flat)))

    def pull(self, upstream: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.backward is None:
            raise GradientError(f"{self.subject} has no backward: give xg.opaque one")
        return self.backward(upstream, *args, **kwargs)

    def declared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Kind], Any]:
        """Return the kinds of the outputs, and how they are nested, for arrays or their kinds."""
        leaves, tree = optree.tree_flatten(
            (args, kwargs), is_leaf=lambda x: isinstance(x, Result), none_is_leaf=True
        )
        args, kwargs = optree.tree_unflatten(tree, [_described(leaf) for leaf in leaves])
        result = self.result(*args, **kwargs) if callable(self.result) else self.result
        flat, nesting = _flat(result)
        named: Mapping[str, Any] = kwargs
        if self.signature is not None:
            named = self.signature.bind(*args, **kwargs).arguments
        rows = [named.get(each, each) if isinstance(each, str) else each for each in flat]
        results = (_as_result(self.subject, each) for each in rows)
        return [(each.shape, each.dtype) for each in results], nesting

    def _compare(self, flat: list[Any], actual: Any, kinds: list[Kind], declared: Any) -> None:
        if actual != declared:
            raise RuleTypeError(
                f"{self.subject} returned {_words(actual)}, and its result= says {_words(declared)}"
            )
        for n, (y, (shape, dtype)) in enumerate(zip(flat, kinds, strict=True)):
            kind = Result(np.shape(y), dtype_name(np.asarray(y).dtype))
            fits = len(kind.shape) == len(shape) and all(
                expected in (None, length)
                for length, expected in zip(kind.shape, shape, strict=True)
            )
            if not fits or kind.dtype != dtype:
                label = f" output {n}" if len(flat) > 1 else ""
                raise RuleTypeError(
                    f"{self.subject} returned{label} {kind.dtype} of shape {kind.shape}, and its "
                    f"result= says {dtype} of shape {shape}"
                )

    def call_across(self, host: Backend, layout: Layout, leaves: Sequence[Any]) -> Any:
        guest = self.guest_for(layout, leaves)
        outputs = cross(host, guest, tuple(leaves[i] for i in tensors_among(layout, leaves)))
        return optree.tree_unflatten(guest.nesting, list(outputs))

    def guest_for(self, layout: Layout, leaves: Sequence[Any]) -> OpaqueGuest:
        places = tensors_among(layout, leaves)

        def place(tensors: Sequence[Any]) -> Any:
            return layout.rebuild(replace_at(leaves, places, tensors))

        def run(*arrays: Array) -> tuple[Array, ...]:
            args, kwargs = _frozen(*place(arrays))
            return tuple(optree.tree_leaves(self.call(args, kwargs)))

        def pull(arrays: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Any, ...]:
            args, kwargs = _frozen(*place(arrays))
            upstream = optree.tree_unflatten(nesting, list(cotangents))
            gradients = match_gradients(self.name, self.pull(upstream, args, kwargs), layout)
            return tuple(_like(gradients[i], x) for i, x in zip(places, arrays, strict=True))

        def keep(*arrays: Array) -> Any:
            return run(*arrays), lambda *cotangents: pull(arrays, cotangents)

        def declare(kinds: Sequence[Kind]) -> tuple[list[Kind], Any]:
            results = [Result(tuple(shape), dtype) for shape, dtype in kinds]
            return self.declared(*place(results))

        nesting = declare([kind_of(leaves[i]) for i in places])[1]
        floats = (leaves[i] for i in places)
        return OpaqueGuest(
            self.subject,
            load_backend("numpy"),
            run,
            keep=keep,
            backward=pull,
            wrt=tuple(n for n, x in enumerate(floats) if dtype_name(x.dtype) in FLOATS),
            owns=True,
            is_batched=self.is_batched,
            declare=declare,
            nesting=nesting,
        )


def recipe_of_opaque(code: OpaqueCode) -> Recipe:
    """Return the recipe of code of which nothing is captured."""

    def refuse(recipe: Recipe, *_: Any) -> Variant:
        raise NotCaptured(TraceError(f"{recipe.subject} is opaque: nobody can look into it"))

    def copied(copy: Callable[[Any], Any]) -> Recipe:
        parts = {name: copy(getattr(code, name)) for name in ("forward", "backward", "result")}
        return recipe_of_opaque(replace(code, **parts))

    return Recipe(
        code.name,
        code.run,
        written_in="numpy",
        signature=code.signature,
        is_derived=code.backward is None,
        copied=copied,
        options=Options(native=True),
        graphs=GraphSource(refuse),
        opaque=OpaqueCalls(code.call_across, code.guest_for),
    )


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueGuest(GuestFunction):
    """A guest whose outputs are declared.

    Attributes:
        declare: kinds of the inputs -> those of the outputs, and how these are nested.
        nesting: of the outputs.
    """

    declare: Callable[[Sequence[Kind]], tuple[list[Kind], Any]] = field(kw_only=True)
    nesting: Any = field(kw_only=True)

    def infer(self, inputs: Sequence[Kind]) -> list[Kind]:
        return self.declare(inputs)[0]

    def refusal(self, what: str = "has no second derivative") -> GradientError:
        return GradientError(f"{self.name} {what}: it is opaque, and so is its backward")

    def unsupported(self, where: str, advice: str) -> UnsupportedOp:
        advice = advice.partition(", or run it in")[0]  # where it could be looked into
        return UnsupportedOp(f"{self.name} is opaque, which {where} cannot call: {advice}")


def _frozen(*arguments: Any) -> Any:

    def freeze(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        # A view: the caller's own array stays writable.
        view = leaf.view()
        view.flags.writeable = False
        return view

    return optree.tree_map(freeze, arguments, none_is_leaf=True)


def _described(leaf: Any) -> Any:
    is_tensor = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    return Result(tuple(leaf.shape), dtype_name(leaf.dtype)) if is_tensor else leaf


def _like(gradient: Any, array: Array) -> Any:
    # Cast as the frameworks' engines cast gradients.
    if gradient is None:
        return None
    own_array = np.asarray(gradient)
    are_floats = {dtype_name(own_array.dtype), dtype_name(array.dtype)} <= {*FLOATS}
    return own_array.astype(array.dtype) if are_floats else own_array


def _flat(result: Any) -> tuple[list[Any], Any]:
    return optree.tree_flatten(result, is_leaf=_is_one, none_is_leaf=True)


def _is_one(x: Any) -> bool:
    if isinstance(x, str) or (hasattr(x, "shape") and hasattr(x, "dtype")):
        return True
    # A pair of shape and dtype, not a nesting of two: its first part has lengths only.
    if not isinstance(x, tuple) or len(x) != 2:
        return False
    shape, dtype = x
    lengths = shape if isinstance(shape, tuple | list) else (shape,)
    are_lengths = all(
        n is None or (hasattr(n, "__index__") and not isinstance(n, bool)) for n in lengths
    )
    return are_lengths and not isinstance(dtype, tuple | list)


def _as_result(subject: str, each: Any) -> Result:
    try:
        shape, dtype = (each.shape, each.dtype) if hasattr(each, "dtype") else each
        name = dtype_name(as_numpy_dtype(dtype_name(dtype)))
        return Result(tuple(shape) if isinstance(shape, tuple | list) else (shape,), name)
    except Exception as error:
        raise RuleTypeError(
            f"{subject}: result= is {each!r:.60}; expected the name of an argument, a shape and a "
            "dtype, or a function that returns them"
        ) from error


def _words(nesting: Any) -> str:
    return "one array" if nesting == ONE else f"{nesting.num_leaves} arrays in {nesting}"


# --- functions, and activations under a rule, in another framework --------------------------------
# What cannot be captured runs as it is in the guest, by its own autodiff and on memory of its own,
# so that a Function for one framework can be used in the others. The host draws a random rule's
# key, so that the numbers are the host's own.
Tensor = Any
# What a call returned that gives a tensor like its input.
BARE_TENSOR = OutputTree(optree.tree_structure(0), [0], [None])


def call_function(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return a Function's outputs for a host's tensors, run in a guest with its backward.

    A Function that runs as it is and draws random numbers of its own draws anew where compiled code
    runs it again for backward.

    Args:
        args, kwargs: what the Function takes; the tensors among them belong to one framework, the
            host.
        guest: the name of a backend.

    Raises:
        BackendNotFound: there is no such backend, or it is not installed.
        UnsupportedOp: the guest lacks an op, or the host cannot call it here.
        TraceError: it runs as it is and is written for another framework than the guest.
    """
    leaves, tree = flatten(args, kwargs)
    leaves = [unwrap(leaf) for leaf in leaves]
    # Without a tensor there is no host: it is a plain call.
    if not any(owner_of(leaf) for leaf in leaves):
        return function(*args, **kwargs)
    layout, leaves = function.entries.lay_out(leaves, tree)
    host = one_backend(function.name, layout, leaves)
    # The tensors are the guest's own.
    if host.name == guest:
        return function(*args, **kwargs)
    return _call_leaves(function, layout, leaves, host, load_backend(guest), draws=function.draws)


def call_activation(
    forward: Forward, in_force: RuleInForce | None, x: Tensor, guest: str
) -> Tensor:
    """Return the activation of a host's tensor, run in a guest with its backward.

    Args:
        in_force: the rule; None: the activation's own derivative.
        x: a tensor of the host, whose autodiff the gradient flows back in.
        guest: the name of a backend.

    Raises:
        BackendNotFound, UnsupportedOp: as by `call_function`.
        GradientError: x is no float.
    """
    x = unwrap(x)
    host = backend_of(x)
    if in_force is None:
        if guest == host.name:
            return without_rule(forward, host, x)(x)
        function, leaves, draws = put_under(None, forward), [x], FREE
    else:
        leaves, draws = [x, *at_present(in_force, host).values], in_force.draws
        function = put_under(in_force.specialization, forward)
        if guest == host.name:
            return function.entries.on(host, leaves).run(leaves, draws)
    layout = function.recipe.lay_out(None, leaves, flatten(tuple(leaves), {})[1])
    function.recipe.arguments.check(host, leaves)
    return _call_leaves(function, layout, leaves, host, load_backend(guest), draws=draws)


def _call_leaves(
    function: FunctionBase,
    layout: Layout,
    leaves: Sequence[Any],
    host: Backend,
    guest: Backend,
    draws: KeySource,
) -> Any:
    tensors = [leaves[i] for i in tensors_among(layout, leaves)]
    variant = find_variant(function, layout, leaves)
    if variant is None:
        guest_function = _make_uncaptured(as_function(function), guest, layout, leaves)
        outputs = cross(host, guest_function, tuple(tensors))
        tree = guest_function.latest.tree
        assert tree is not None  # the bridge ran the code, or inferred what it returns
        return tree.fill(outputs)
    plain_functions = find_plain_functions(function, variant, guest)
    guest_function = make_guest_function(function, variant, plain_functions, guest, leaves)
    if variant.graphs.is_random:
        key = draws.next_key(host)
        is_words = isinstance(key, tuple)
        tensors.append(host.tensors.from_numpy(np.array(key, np.uint32)) if is_words else key)
    return assemble(variant, cross(host, guest_function, tuple(tensors)))


def find_variant(function: FunctionBase, layout: Layout, leaves: Sequence[Any]) -> Variant | None:
    """Return a Function's graphs for these arguments; None: it runs as it is."""
    if function.native is True:
        return None
    try:
        return decide_call(function.entries, ELSEWHERE, layout, leaves).variant
    except NotCaptured as error:
        function.recipe.give_up(error.with_cause())
        return None


def find_plain_functions(
    function: FunctionBase, variant: Variant, guest: Backend
) -> PlainFunctions:
    graphs = variant.graphs

    def lower() -> tuple[PlainFunctions, dict[str, str]]:
        lacking = find_lacking(function.recipe.subject, guest, graphs.forward, graphs.backward)
        return lower_graphs(graphs, without_autodiff(guest)).native, lacking

    plain_functions, lacking = build_once(variant.lowered, f"straight {guest.name}", lower)
    refuse_lacking(lacking, variant.layout.dtype or "")
    return plain_functions


def make_guest_function(
    function: FunctionBase,
    variant: Variant,
    plain_functions: PlainFunctions,
    guest: Backend,
    leaves: Sequence[Any],
) -> GuestFunction:
    layout = variant.layout
    tensor_count = len(layout.tensors)
    values = [leaves[i] for i in layout.indices("number")]
    # A number that is not plain, such as a tensor, becomes an input of the guest.
    numbers = [value if isinstance(value, int | float) else None for value in values]
    key_position = tensor_count + numbers.count(None)
    emitted = plain_functions.emitted
    names = zip(emitted.names.inputs, layout.tensors, strict=True)

    def insert_numbers(inputs: Sequence[Tensor]) -> list[Any]:
        # What follows the tensors: an input for each number that is not plain, then the key.
        extras = iter(inputs[tensor_count:])
        values = [next(extras) if number is None else number for number in numbers]
        return [*inputs[:tensor_count], *values, *extras]

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return plain_functions.run(*insert_numbers(inputs))

    def keep(*inputs: Tensor) -> Any:
        return plain_functions.record(*insert_numbers(inputs))

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return plain_functions.gradients(insert_numbers(inputs), cotangents)

    return GuestFunction(
        function.recipe.title,
        guest,
        run,
        keep=keep,
        backward=backward,
        wrt=tuple(
            i for i, (name, leaf) in enumerate(names) if name in emitted.names.wrt and leaf.is_float
        ),
        like=(0,) if function.recipe.graphs.gives_like_input else None,
        undifferentiable=emitted.derivative.undifferentiable,
        key=key_position if plain_functions.is_random else None,
        keeps_outputs=plain_functions.keeps_outputs,
        trials=_trials_of(
            function, (guest.name, layout.key, layout.dtype, tuple(numbers), variant.graphs.name)
        ),
    )


# For one Function; numbers that never repeat would fill it without end.
MOST_LAYOUTS = 256
_lock = make_lock()
# By Function, which this keeps no longer alive.
_trials: weakref.WeakKeyDictionary[FunctionBase, dict[Any, Trials]] = weakref.WeakKeyDictionary()


def _trials_of(function: FunctionBase, key: Any) -> Trials:
    with _lock:
        by_layout = _trials.setdefault(function, {})
        # Only a cache: it is emptied when it is full.
        if len(by_layout) >= MOST_LAYOUTS:
            by_layout.clear()
        return by_layout.setdefault(key, {})


def _make_uncaptured(
    function: Function, guest: Backend, layout: Layout, leaves: Sequence[Any]
) -> GuestFunction:
    called = as_function(function)
    places = tensors_among(layout, leaves)
    gives_like_input = function.recipe.graphs.gives_like_input
    latest = LatestOutputs(BARE_TENSOR if gives_like_input else None)

    def note(flat: Sequence[Any], nesting: Any) -> OutputTree:
        positions = [i for i, leaf in enumerate(flat) if owner_of(leaf) is not None]
        non_tensors = [None if i in positions else leaf for i, leaf in enumerate(flat)]
        tree = latest.tree = OutputTree(nesting, positions, non_tensors)
        # The bridge carries only the guest's tensors back.
        if any(owner_of(flat[i]) is not guest for i in positions):
            raise MultigradError(
                f"{function.recipe.subject} returned a tensor of another framework than "
                f"{guest.name}, where it runs"
            )
        return tree

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = layout.rebuild(replace_at(leaves, places, inputs))
        flat, nesting = optree.tree_flatten(called(*args, **kwargs), none_is_leaf=True)
        return tuple(flat[i] for i in note(flat, nesting).positions)

    def keep(*inputs: Tensor) -> Any:
        arguments = replace_at(leaves, places, inputs)
        flat, nesting, pull_leaves = vjp_leaves(called, arguments, layout.tree, guest)
        tree = note(flat, nesting)

        def pull(*cotangents: Tensor) -> tuple[Tensor | None, ...]:
            gradients = pull_leaves(replace_at([None] * len(flat), tree.positions, cotangents))
            return tuple(gradients[i] for i in places)

        return tuple(flat[i] for i in tree.positions), pull

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Any, ...]:
        return keep(*inputs)[1](*cotangents)

    numbers = tuple(leaves[i] for i in layout.indices("number") if i not in places)
    dtypes = tuple(leaf.dtype for leaf in layout.tensors)
    return GuestFunction(
        function.recipe.title,
        guest,
        run,
        keep=keep,
        backward=backward,
        wrt=tuple(i for i, leaf in enumerate(layout.tensors) if leaf.is_float),
        like=(0,) if gives_like_input else None,
        owns=True,
        latest=latest,
        trials=_trials_of(function, (guest.name, layout.key, dtypes, numbers)),
    )
