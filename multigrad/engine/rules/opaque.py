"""`xg.opaque`: code that nobody can look into, with its own backward, in every framework.

It runs on NumPy arrays. In a framework it is a guest, which the framework's own autodiff and
compiler call back; what it returns is declared, so that they know before it runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...core.backend.contract import Backend
from ...core.backend.discovery import load_backend
from ...core.functions.arguments import Layout, replace_at
from ...core.functions.capture_errors import NotCaptured
from ...core.functions.function import Function
from ...core.functions.gradients import match_gradients
from ...core.functions.parameters import signature_of
from ...core.functions.recipe import GraphSource, OpaqueCalls, Options, Recipe, Recorded, Variant
from ...core.ir.op import FLOATS, dtype_name
from ...core.ops.numerics import as_numpy_dtype
from ...core.rules.signature import name_of, refuse_class
from ...core.support.trees import optree
from ...errors import GradientError, RuleTypeError, TraceError, UnsupportedOp
from ..backend.guest import Kind, kind_of
from ..functions.calls.as_written import tensors_among
from ..functions.custom_gradient import refuse_rule
from .guest_function import GuestFunction, cross

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

        def pull(arrays: Sequence[Array], cotangents: Sequence[Array]) -> tuple[Any, ...]:
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
        is_batched: whether it takes arrays with more axes in front.
        declare: kinds of the inputs -> those of the outputs, and how these are nested.
        nesting: of the outputs.
    """

    is_batched: bool = False
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
