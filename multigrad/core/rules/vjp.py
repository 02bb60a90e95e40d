"""`xg.vjp`: outputs with their pullback, on every framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import GradientError, RuleTypeError, TraceError, UnsupportedOp
from .. import ops
from ..backend.contract import Backend
from ..backend.discovery import backend_among, entry_points, load_backend, refuse_unusable
from ..backend.values import in_one_framework, owner_of
from ..functions.arguments import KNOWN_LEAVES, Layout, flatten
from ..functions.function import Entry, FunctionBase, Run
from ..functions.recipe import NotCaptured, Variant, assemble
from ..ir.op import BOOL, FLOATS, WHOLE, dtype_name
from ..support.lazy_modules import NEEDS_ENGINE, of_engine, provided
from ..support.params import R
from ..support.threads import build_once
from ..support.tracebacks import door, shorten
from ..support.trees import Tensor, optree
from ..trace.active_rules import FREE, KeySource
from ..trace.lookups import at_present, is_read
from ..trace.trace import Value
from .activation import Activation
from .activation_function import put_under
from .signature import refuse_class

Pullback = Callable[[Any], tuple[Any, ...]]
PullLeaves = Callable[[list[Any]], list[Any]]  # from cotangents to gradients, both flat
ARRAYS = frozenset({np.ndarray})
COTANGENT = "vjp's pullback got a cotangent"


def vjp(f: Callable[..., R], *inputs: Any) -> tuple[R, Pullback]:
    """Return `f(*inputs)` and the map from its cotangent to the gradients of the inputs.

    Examples:
        >>> @xg.custom_gradient
        ... def twice(x, limit):
        ...     return 2.0 * x, lambda upstream: (xp.clip(2.0 * upstream, -limit, limit), None)
        >>> y, pull = xg.vjp(twice, np.array([1.0, 2.0]), 1.5)
        >>> pull(np.array([0.5, 1.0]))[0]
        array([1. , 1.5])

    Args:
        f: a Function, an activation, or any function of tensors. On NumPy, which has no autodiff of
            its own, it is captured, and differentiated by the VJPs of its ops and by the own
            backward of each Function in it.
        *inputs: tensors of one framework, or NumPy arrays, which beside tensors are that
            framework's; also nested. Numbers and other values are passed along.

    Returns:
        The outputs, and `pullback(cotangent)`: the cotangent is nested like the outputs (None:
        zero); it returns a tuple with one gradient per input, nested like it; zeros where an output
        does not depend on a float input, None for what is not a float tensor.

    Raises:
        TraceError: on NumPy; f cannot be captured.
        GradientError: the cotangent does not fit the outputs.
        TypeError: f is a class, or not callable.
    """
    # A second call on NumPy arrays of the same dtypes needs none of the checks below.
    if inputs and ARRAYS.issuperset(map(type, inputs)):
        result = _run_as_before(f, inputs)
        if result is not None:
            return result
    return _vjp_anew(f, inputs)


@door
def _vjp_anew(f: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Any, Pullback]:
    leaves, tree, backend = open_inputs("vjp", f, inputs)
    try:
        flat, nesting, pull_leaves = vjp_leaves(f, leaves, tree, backend)
    except TraceError as error:
        packages = {each.__module__.partition(".")[0] for each in type(f).__mro__} - {"numpy"}
        if backend.name == "numpy" and not packages.isdisjoint(("keras", *entry_points())):
            raise RuleTypeError(
                f"vjp got NumPy arrays for a {type(f).__name__}, which computes with tensors of "
                "its framework: pass those, which torch.as_tensor(x), jnp.asarray(x) or "
                "keras.ops.convert_to_tensor(x) makes"
            ) from error
        raise
    shapes = list(map(_shape_of, flat))  # and not the outputs, which it would keep alive
    return optree.tree_unflatten(nesting, flat), _pullback(pull_leaves, shapes, tree)


def _shape_of(x: Any) -> tuple[int, ...] | None:
    if isinstance(x, bool | int | float):
        return ()
    try:
        shape = tuple(x.shape)
    except (AttributeError, TypeError, ValueError):  # TensorFlow's of an unknown rank
        return None
    return shape if all(type(length) is int for length in shape) else None


def _pullback(pull: PullLeaves, shapes: Sequence[tuple[int, ...] | None], tree: Any) -> Pullback:

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        try:
            flat = optree.tree_leaves(cotangent, none_is_leaf=True)
            if len(flat) != len(shapes):
                raise GradientError(
                    f"vjp's pullback got {len(flat)} cotangents for {len(shapes)} outputs; pass "
                    "them nested like the outputs, None for zero"
                )
            for each, shape in zip(flat, shapes, strict=True):
                actual = None if each is None else _shape_of(each)
                if actual is not None and shape is not None and actual != shape:
                    raise GradientError(
                        f"vjp's pullback got a cotangent of shape {actual} for an output of shape "
                        f"{shape}; expected the same shape"
                    )
            args, _ = optree.tree_unflatten(tree, pull(flat))
            return tuple(args)
        except Exception as error:
            shorten(error)
            raise

    return pullback


def open_inputs(
    name: str, f: Callable[..., Any], inputs: tuple[Any, ...]
) -> tuple[list[Any], Any, Backend]:
    """Return the inputs of a derivative as a flat list, the nesting of (args, kwargs), and the
    backend that owns the tensors among them.
    """
    refuse_class(f)
    leaves, tree = flatten(inputs, {})
    if any(not isinstance(leaf, KNOWN_LEAVES) and owner_of(leaf) is None for leaf in leaves):
        leaves, tree = open_leaves(inputs)
    if all(owner_of(leaf) is None for leaf in leaves):
        leaves = [np.asarray(leaf) if isinstance(leaf, float) else leaf for leaf in leaves]
    # NumPy arrays next to tensors become that framework's.
    leaves = in_one_framework(leaves)
    positions = [i for i, leaf in enumerate(leaves) if owner_of(leaf) is not None]
    if not positions and any(isinstance(leaf, Value) for leaf in leaves):
        raise TraceError(f"xg.{name} computes numbers: code that calls it runs as it is written")
    if not positions:
        refuse_unusable(*map(type, leaves))
        raise RuleTypeError(f"{name} got no tensor; pass arrays or tensors as inputs")
    return leaves, tree, backend_among(leaves[i] for i in positions)


@provided
def open_leaves(inputs: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """Return the leaves of inputs, those of containers that a framework knows and the tensors of
    variables among them, and the nesting of (args, kwargs).
    """
    return flatten(inputs, {})


def vjp_leaves(
    f: Callable[..., Any],
    leaves: Sequence[Any],
    tree: Any,
    backend: Backend,
    vjp: Callable[..., Any] | None = None,
) -> tuple[list[Any], Any, PullLeaves]:
    """Return the outputs of f as a flat list, their nesting, and the map from their cotangents to
    one gradient per leaf.

    Args:
        leaves, tree: the arguments as a flat list, and the nesting of (args, kwargs).
        backend: the one that owns the tensors among the leaves.
        vjp: used instead of `Autodiff.vjp`.
    """
    vjp = vjp or backend.autodiff.vjp
    if vjp is not None:
        return vjp_by_framework(vjp, f, leaves, tree, backend)
    function, layout, arguments, draws = as_function(f, leaves, tree, backend)
    outputs, pull_arguments = _of_function(function, layout, arguments, draws, backend)
    flat, outputs_tree = optree.tree_flatten(outputs, none_is_leaf=True)
    return flat, outputs_tree, lambda cotangents: pull_arguments(cotangents)[: len(leaves)]


vjp_by_framework = of_engine(__name__, "vjp_by_framework", "a derivative that a framework takes")


def as_function(
    f: Callable[..., Any], leaves: Sequence[Any], tree: Any, backend: Backend
) -> tuple[FunctionBase, Layout, Sequence[Any], KeySource]:
    """Return f as a Function, the layout of its arguments, the arguments (the leaves, then the
    rule's numbers), and where its draws come from.
    """
    f = getattr(f, "captured_form", f)  # of what `override` returned
    if isinstance(f, Activation) and len(leaves) == 1:
        function, values, draws = function_in_force(f, backend)
        leaves, tree = flatten((*leaves, *values), {})
        layout = function.recipe.lay_out(function.parameters, leaves, tree)
    else:
        function, layout, leaves = as_derived(f, leaves, tree)
        draws = function.draws
    return function, layout, leaves, draws


def function_in_force(
    f: Activation, backend: Backend | None = None
) -> tuple[FunctionBase, tuple[Any, ...], KeySource]:
    """Return an activation under its rule as a Function, the current values of its params, and
    where its draws come from.
    """
    in_force = f.in_force()
    if in_force is None:
        return put_under(None, f.forward), (), FREE
    in_force = at_present(in_force, backend)
    return put_under(in_force.specialization, f.forward), in_force.values, in_force.draws


def _of_function(
    function: FunctionBase,
    layout: Layout,
    leaves: Sequence[Any],
    draws: KeySource,
    backend: Backend,
) -> tuple[Any, PullLeaves]:
    if function.entries.runs_as_written(layout):
        return vjp_as_written(function, layout, leaves, backend, None)
    try:
        variant, is_written = _variant_of_call(function, layout, leaves, backend)
    except NotCaptured as error:
        refusal = error.with_cause()
        if function.recipe.is_derived:
            raise refusal from error.__cause__
        return vjp_as_written(function, layout, leaves, backend, function.recipe.give_up(refusal))
    if is_written:
        return vjp_as_written(function, layout, leaves, backend, None)
    arguments = checked_values(function, variant, layout, leaves, draws=draws, backend=backend)
    native = function.entries.lowered(variant, backend).native
    try:
        output, pull_arrays = native.vjp(*arguments)
    except IndexError:
        explain_places(function.recipe.subject, variant, backend, leaves)
        raise
    if not function.defaults and flatten(tuple(leaves), {})[1] == layout.tree:
        _keep(function, variant, layout, leaves, native)
    outputs = assemble(variant, (output,) if len(variant.graphs.cotangents) == 1 else output)
    return outputs, _pull_of(
        variant, layout, leaves, outputs, pull_arrays=pull_arrays, backend=backend
    )


def _pull_of(
    variant: Variant,
    layout: Layout,
    leaves: Sequence[Any],
    outputs: Any,
    pull_arrays: Callable[[Any], Any],
    backend: Backend,
) -> PullLeaves:
    # From cotangents of all outputs to gradients of all leaves; `pull_arrays` has those of tensors.
    flat_outputs = optree.tree_leaves(outputs, none_is_leaf=True)
    positions = [i for i in range(variant.outputs.num_leaves) if i not in variant.fixed]
    is_single, takes_one = len(variant.graphs.cotangents) == 1, len(variant.graphs.inputs) == 1

    def pull(cotangents: list[Any]) -> list[Any]:
        pairs = [(flat_outputs[i], cotangents[i]) for i in positions]
        upstream = [as_that_of(y, c, backend, COTANGENT) for y, c in pairs]
        tensor_gradients = pull_arrays(upstream[0] if is_single else tuple(upstream))
        tensor_gradients = (tensor_gradients,) if takes_one else tensor_gradients
        gradients: list[Any] = [None] * len(leaves)
        for i, gradient in zip(layout.indices("tensor"), tensor_gradients, strict=True):
            gradients[i] = zeros_if_none(gradient, leaves[i], layout.leaves[i].is_float, backend)
        return gradients

    return pull


def _variant_of_call(
    function: FunctionBase, layout: Layout, leaves: Sequence[Any], backend: Backend
) -> tuple[Variant, bool]:
    """Return the variant of a call, and whether it runs as written instead."""
    if not any(map(is_read, function.captures.facts)):
        variant = function.captures.for_call(layout, leaves)
        if variant.is_whole:
            return variant, False
    variant, reason, _ = decide_vjp(function, layout, leaves, backend)
    return variant, bool(reason)


decide_vjp = of_engine(__name__, "decide_vjp", "a derivative of code that does more than its graph")


@provided
def explain_places(subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]) -> None:
    """Raise which index lies outside, if that made a call fail; a rule has no indices."""


as_derived = of_engine(__name__, "as_derived", "the derivative of code on NumPy")


@provided
def vjp_as_written(
    function: FunctionBase,
    layout: Layout,
    leaves: Sequence[Any],
    backend: Backend,
    error: TraceError | None,
) -> tuple[Any, PullLeaves]:
    """Run a Function as its author wrote it; return its outputs and the map from cotangents."""
    reason = f"{error}; it" if error is not None else function.recipe.subject
    raise UnsupportedOp(f"{reason} runs as written, which {NEEDS_ENGINE}")


@provided
def check_call(subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]) -> None:
    """Check what code asserts of a call, and that what it updates is apart; a rule does neither."""


def checked_values(
    function: FunctionBase,
    variant: Variant,
    layout: Layout,
    leaves: Sequence[Any],
    draws: KeySource,
    backend: Backend,
) -> list[Any]:
    """Check a call, and return the arguments of a variant's code: tensors, numbers, a key."""
    if variant.assumed or variant.updates:
        check_call(function.recipe.subject, variant, backend, leaves)
    order = (*layout.indices("tensor"), *layout.indices("number"))
    key = [draws.next_key(backend)] if variant.graphs.is_random else []
    return [*[leaves[i] for i in order], *[find() for find in variant.numbers], *key]


def as_that_of(tensor: Any, value: Any, backend: Backend, what: str) -> Any:
    """Return a cotangent or a tangent in the dtype of its tensor; None, which is zero, stays None,
    and zeros of no bytes, which jax has for integers, become None.

    Args:
        what: "vjp's pullback got a cotangent", for the message.
    """
    dtype = getattr(value, "dtype", None)
    if value is None or getattr(dtype, "itemsize", 1) == 0:
        return None
    target = getattr(tensor, "dtype", None)
    if target is None or dtype == target:
        return value
    if owner_of(value) is not backend:
        value = in_one_framework([np.asarray(value), tensor])[0]
    if owner_of(value) is not backend or dtype_name(value.dtype) not in (*FLOATS, *WHOLE, BOOL):
        raise GradientError(
            f"{what} of {dtype_name(np.asarray(value).dtype)} for a tensor of "
            f"{dtype_name(target)}; pass real numbers, or None for zero"
        )
    return backend.kernels.rows[ops.CAST](value, dtype=target)


def zeros_if_none(gradient: Any, like: Tensor, is_float: bool, backend: Backend) -> Any:
    if gradient is not None or not is_float:
        return gradient
    return backend.tensors.from_numpy(np.zeros_like(backend.tensors.to_numpy(like)))


# --- calls on NumPy arrays of the same dtypes as before, which skip the checks --------------------
# They depend on nothing but the dtypes and what the code reads, which their entry compares.
MOST_KEPT = 1024  # calls of one Function
PULLS = "pulls"  # among what a Function keeps of its calls


def _run_as_before(f: Any, arrays: tuple[Any, ...]) -> tuple[Any, Pullback] | None:
    """Return the output and the pullback of a call that `_keep` knows; None: it knows none."""
    values: tuple[Any, ...] = ()
    if isinstance(f, Activation):
        f, values, _ = function_in_force(f, load_backend("numpy"))
    elif not isinstance(f, FunctionBase):
        return None
    key = (PULLS, *[x.dtype for x in arrays], *map(type, values))
    entry = f.entries.known.get(key)
    result = None if entry is None else entry.run((*arrays, *values), FREE)
    if result is None:
        f.entries.known.pop(key, None)
    return result


def _keep(
    function: FunctionBase,
    variant: Variant,
    layout: Layout,
    leaves: Sequence[Any],
    native: Any,
) -> None:
    """Keep how a call ran for the next calls of the same dtypes."""
    arrays = [leaf for leaf in leaves if type(leaf) in ARRAYS]
    count = len(arrays)
    order = (*layout.indices("tensor"), *layout.indices("number"))
    # Kept only if nothing but the arrays' dtypes decides how the call runs.
    if (
        variant.graphs.is_random
        or variant.assumed
        or variant.updates
        or variant.numbers
        or not variant.outputs.is_leaf()
        or order != tuple(range(len(leaves)))
        or not all(leaf.is_float for leaf in layout.leaves[:count])
        or len(variant.graphs.inputs) != count
    ):
        return

    run = _runner(native, count)
    key = (PULLS, *[leaf.dtype for leaf in arrays], *map(type, leaves[count:]))
    is_open = variant.has_index or not function.captures.facts <= {"dtype"}
    entry = entry_of(function, variant, run) if is_open else Entry(run)
    if entry is not None:
        build_once(function.entries.known, key, lambda: entry, MOST_KEPT)


def _runner(native: Any, count: int) -> Run:
    """Return the call of a lowered function of `count` arrays and some numbers."""

    def run(leaves: Sequence[Any], draws: KeySource) -> tuple[Any, Pullback]:
        output, pull_array = native.vjp(*leaves)
        shape, dtype, arrays = output.shape, output.dtype, leaves[:count]

        def pull(cotangents: list[Any]) -> list[Any]:
            upstream = cotangents[0]
            if getattr(upstream, "dtype", None) != dtype:
                like = np.empty(0, dtype)
                upstream = as_that_of(like, upstream, load_backend("numpy"), COTANGENT)
            gradients = pull_array(upstream)
            pairs = zip((gradients,) if count == 1 else gradients, arrays, strict=True)
            return [np.zeros_like(x) if gradient is None else gradient for gradient, x in pairs]

        def pullback(cotangent: Any) -> tuple[Any, ...]:
            if type(cotangent) in ARRAYS and cotangent.shape == shape:
                return tuple(pull([cotangent]))
            return _pullback(pull, [shape], flatten(tuple(arrays), {})[1])(cotangent)

        return output, pullback

    return run


@provided
def entry_of(function: FunctionBase, variant: Variant, run: Run) -> Entry | None:
    """Return an entry for calls whose arrays have the same dtypes; None: each is looked up."""
    return None
