"""`xg.convert` and the importers: a framework's own custom gradients as Functions, unchanged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from ..backend.contract import Backend
from ..backend.discovery import backend_of, entry_points, in_use, load_backend
from ..capture.user_code.object_copies import copied
from ..capture.user_code.object_state import ObjectState, describe, held_by, read_state
from ..capture.user_code.options import Capture, capture_options
from ..capture.user_code.signature import name_of
from ..errors import (
    DisprovedError,
    MultigradError,
    RuleTypeError,
    RuleValueError,
    UnsupportedOp,
    suggest,
)
from ..graph.ir.types import FLOATS, dtype_name
from ..graph.support.params import P, R
from ..trace.coercion import lift_array
from ..trace.trace import Trace
from .calls.arguments import BoundFunction
from .calls.recipe import CodeRecipe, GraphSource, Recipe, Recorded
from .calls.variant import Variant
from .captures import prove_code
from .custom_gradient import function, refuse_rule
from .function import Function
from .hidden_tensors import STATE, holds_state, owner_of_method
from .object_arguments import MayTakeObjects
from .object_function import recipe_of_object
from .proof.verdicts import ProofSubject, leave_open

Tensor = Any


@overload
def convert(obj: type, *, capture: Capture | None = None) -> Function[..., Any]: ...
@overload
def convert(obj: Callable[P, R], *, capture: Capture | None = None) -> Function[P, R]: ...
@overload
def convert(
    obj: Callable[..., R], *, to: str, capture: Capture | None = None
) -> tuple[Function[..., R], dict[str, Any]]: ...
def convert(obj: Any, *, to: str | None = None, capture: Capture | None = None) -> Any:
    """Return code written for one framework as a Function for every framework.

    It recognizes what it is given: a `torch.autograd.Function` class, a function decorated with
    `jax.custom_vjp`, `jax.custom_jvp` or `tf.custom_gradient`, or a custom gradient of another
    framework whose backend imports these. Any other callable is treated as a function of tensors:
    it keeps its derivative, and those of the custom gradients that it calls.

    Examples:
        >>> import torch
        >>> class Clipped(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x.clone()
        ...
        ...     @staticmethod
        ...     def backward(ctx, grad_out):
        ...         return grad_out.clamp(-1.0, 1.0)
        >>> y, pull = xg.vjp(xg.convert(Clipped), np.array([5.0, 6.0]))  # now on NumPy
        >>> pull(np.array([-3.0, 0.5]))[0]
        array([-1. ,  0.5])
        >>> y, pull = xg.vjp(xg.convert(lambda x: 2.0 * Clipped.apply(x)), np.array([5.0, 6.0]))
        >>> pull(np.array([-3.0, 0.5]))[0]
        array([-1.,  1.])

    A module, a layer or another object with parameters is called as it is, and its parameters are
    constants elsewhere; for training in another framework, take them apart with `to=`:

        >>> layer = torch.nn.Linear(3, 2)
        >>> apply, parameters = xg.convert(layer, to="numpy")
        >>> sorted(parameters), apply(parameters, np.zeros((4, 3), "float32")).shape
        (['bias', 'weight'], (4, 2))

    Args:
        obj: the class, the decorated function, or a function of tensors. A class is called as its
            `apply` is: positionally, other values than tensors included; under that name, too, so
            that a class may be decorated where it stands. Of modules among its arguments, and of
            functions that call some, the parameters are hidden arguments: what a backward adds to
            their `.grad` are their gradients. A Function is returned as it is.
        to: of a module: the framework in which its parameters are to be tensors. Then a pair is
            returned: a Function `apply(parameters, *args)`, whose parameters get gradients, on
            every framework; and the parameters, copied, by the names that its library has for them
            (`layers.0.weight` for torch, `dense/kernel` for Keras, `layers.0.kernel` for flax nnx):
            those that are trained, or all floats where a library does not say. Everything else that
            it holds keeps its current value.
        capture: how it becomes a graph; None: the defaults of `xg.Capture()`. A framework's own
            custom gradient has that framework's dialect, and runs there unchanged if it cannot be
            captured: of the options, only `prove` and `copies` can be given.

    Raises:
        RuleTypeError: it is a rule, nothing that is called, or a class of another kind; or an
            option is for functions alone; or `to` is given, and the object has no parameters.
        TraceError: at a call in another framework; it cannot be captured.
    """
    options = capture_options(capture)
    if to is not None:
        return apart(obj, to, options)
    if isinstance(obj, Function | BoundFunction):
        return obj
    refuse_rule(obj)
    found = find_custom(obj)
    if found is not None:
        home, recipe = found
        # The others choose a dialect or a way to run, which the framework has decided.
        if options != Capture(prove=options.prove, copies=options.copies):
            raise RuleTypeError(
                f"{named(obj)} is a custom gradient of {home.name}: of capture=xg.Capture(...), it "
                "takes prove and copies alone"
            )
        return as_function(home.name, obj, recipe, options.prove, options.copies)
    if isinstance(obj, type):
        raise RuleTypeError(
            f"the class {obj.__name__!r} is not a custom gradient like a torch.autograd.Function; "
            "give an object of it, which is called, or a method"
        )
    return function(obj, capture=options)


def named(obj: Any) -> str:
    return repr(getattr(obj, "__name__", None) or type(obj).__name__)


def find_custom(obj: Any) -> tuple[Backend, Any] | None:
    """Return the backend that knows an object as its custom gradient, and its recipe; else None."""
    # Only a backend can tell, by reading it: the first that does.
    for backend in in_use() if callable(obj) else ():
        if backend.imports.import_function is None:
            continue
        try:
            return backend, backend.imports.import_function(obj)
        except (TypeError, MultigradError):
            continue
    return None


def from_autograd_function(cls: type, *, prove: bool = True) -> Function[..., Any]:
    """Return a `torch.autograd.Function` class as a Function for every framework.

    It may be a class of another framework whose backend imports these, too. `xg.convert` takes
    these and everything else.

    Call it like `cls.apply`: positionally, with values other than tensors included. Both styles
    work: a forward that gets `ctx`, and one with `setup_context`. If the class does more than a
    graph can express (asserts something about values, is differentiated twice through another
    class), torch runs the class itself.

    Examples:
        >>> import torch
        >>> class ClippedReLU(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x, limit):
        ...         ctx.save_for_backward(x)
        ...         ctx.limit = limit
        ...         return x.clamp(0.0, limit)
        ...
        ...     @staticmethod
        ...     def backward(ctx, grad_out):
        ...         (x,) = ctx.saved_tensors
        ...         return grad_out * ((x > 0) & (x < ctx.limit)), None
        >>> clipped = xg.from_autograd_function(ClippedReLU)
        >>> y, pull = xg.vjp(clipped, np.array([-1.0, 0.5, 3.0]), 2.0)  # now on NumPy
        >>> y, pull(np.ones(3))[0]
        (array([0. , 0.5, 2. ]), array([0., 1., 0.]))

    Args:
        cls: the class.
        prove: see `custom_gradient`.

    Raises:
        TypeError: it is no such class.
        TraceError: at a call in another framework; it cannot be captured.
        AssertionError: at a call; what it asserts of small tensors, known then, does not hold.
    """
    return import_from(framework_of(cls), cls, prove)


def framework_of(cls: Any, default: str = "torch") -> str:
    """Return the framework that a class comes from; the default for what comes from none."""
    modules = [str(getattr(base, "__module__", "")) for base in getattr(cls, "__mro__", ())]
    roots = [module.partition(".")[0] for module in modules]
    return next((root for root in roots if root in entry_points()), default)


def from_custom_vjp(f: Callable[P, R], *, prove: bool = True) -> Function[P, R]:
    """Return a `jax.custom_vjp` function as a Function for every framework.

    It may be a function with its own gradient from another framework whose backend imports these,
    too. `xg.convert` takes these and everything else.

    A `jax.custom_jvp` function is accepted too (`from_custom_jvp`), and one made by
    `jax.custom_gradient`.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> @jax.custom_vjp
        ... def clip_gradient(x):
        ...     return x
        >>> clip_gradient.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1.0, 1.0),))
        >>> y, pull = xg.vjp(xg.from_custom_vjp(clip_gradient), np.array([5.0, 6.0]))
        >>> pull(np.array([-3.0, 0.5]))[0]
        array([-1. ,  0.5])

    Args:
        f: the function.
        prove: see `custom_gradient`.

    Raises:
        TypeError: it is no such function, or its rules are not defined yet.
        TraceError: at a call in another framework; it cannot be captured.
    """
    return import_from(framework_of(type(f), "jax"), f, prove)


def from_custom_jvp(f: Callable[P, R], *, prove: bool = True) -> Function[P, R]:
    """Return a `jax.custom_jvp` function as a Function for every framework.

    It may be a function of another framework with its own tangent rule, too, such as a
    `torch.autograd.Function` class with `jvp`. `xg.convert` takes these and everything else.

    Forward mode is the rule as its author wrote it, in `jax.jvp`, `jacfwd` and `linearize`, and on
    every framework in `xg.jvp`; reverse mode is the transpose of a `jax.custom_jvp` function's
    rule, and a class's own backward. TensorFlow transposes the backward itself, whatever the class
    defines.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> @jax.custom_jvp
        ... def log1pexp(x):
        ...     return jnp.log(1.0 + jnp.exp(x))
        >>> @log1pexp.defjvp
        ... def rule(primals, tangents):
        ...     return log1pexp(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]
        >>> f = xg.from_custom_jvp(log1pexp)
        >>> xg.jvp(f, (np.array([0.0, 100.0]),), (np.array([1.0, 1.0]),))  # now on NumPy
        (array([  0.69314718, 100.        ]), array([0.5, 1. ]))
        >>> jax.jvp(f, (jnp.float32(100.0),), (jnp.float32(2.0),))[1]
        Array(2., dtype=float32)

    Args:
        f: the function, or the class.
        prove: see `custom_gradient`.

    Raises:
        TypeError: it has no tangent rule, or that is not defined yet.
        TraceError: at a call in another framework; it cannot be captured.
    """
    imported = import_from(framework_of(f, framework_of(type(f), "jax")), f, prove)
    recipe = imported.recipe
    if recipe.imported is None or not recipe.imported.gives_tangents:
        raise RuleTypeError(
            f"{named(f)} has no tangent rule of its own (jax.custom_jvp, a class's jvp): "
            "xg.convert takes it, and forward mode is the transpose of its backward"
        )
    return imported


def from_tf_custom_gradient(f: Callable[P, R], *, prove: bool = True) -> Function[P, R]:
    """Return a function decorated with `tf.custom_gradient` as a Function for every framework.

    `xg.convert` takes these and everything else.

    Examples:
        >>> import tensorflow as tf
        >>> @tf.custom_gradient
        ... def clip_gradient(x):
        ...     return tf.identity(x), lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)
        >>> y, pull = xg.vjp(xg.from_tf_custom_gradient(clip_gradient), np.array([5.0, 6.0]))
        >>> pull(np.array([-3.0, 0.5]))[0]
        array([-1. ,  0.5])

    Args:
        f: the function.
        prove: see `custom_gradient`.

    Raises:
        TypeError: it is no such function.
        TraceError: at a call in another framework; it cannot be captured.
    """
    return import_from("tensorflow", f, prove)


def import_from(framework: str, native: Any, prove: bool = True) -> Function[..., Any]:
    """Return a framework's own custom gradient as a Function.

    Raises:
        UnsupportedOp: that framework's backend imports none.
    """
    read = load_backend(framework).imports.import_function
    if read is None:
        raise UnsupportedOp(f"backend {framework!r} imports no custom gradients")
    return as_function(framework, native, read(native), prove)


def as_function(
    framework: str,
    native: Any,
    recipe: Recipe | CodeRecipe,
    prove: bool = True,
    copies: bool = False,
) -> Function[..., Any]:
    """Return the Function of a framework's own custom gradient, from the recipe read from it.

    Raises:
        RuleTypeError: `copies` is set, which recipes of this framework do not know.
    """
    recipe = recipe.as_recipe() if isinstance(recipe, CodeRecipe) else recipe
    imported = recipe.imported
    if copies:
        if imported is None or imported.on_copies is None:
            raise RuleTypeError(
                f"{named(native)} is a custom gradient of {framework}, which is not captured "
                "writing into its arguments: leave copies=True out"
            )
        recipe = imported.on_copies()
    takes_objects = imported is not None and imported.holds is not None
    return (MayTakeObjects if takes_objects else Function)(recipe, prove=prove)


# --- a module for another framework ---------------------------------------------------------------
PARAMETERS = inspect.Parameter("parameters", inspect.Parameter.POSITIONAL_ONLY)


def apart(
    obj: Any, framework: str, options: Capture
) -> tuple[Function[..., Any], dict[str, Tensor]]:
    """Return an object as a function of its parameters, and these as tensors of a framework."""
    if not callable(obj) or not holds_state(obj):
        raise RuleTypeError(
            f"to={framework!r} is for a module, a layer, or another object with parameters, not "
            f"for {name_of(obj)!r}: without any, it runs on every framework as xg.convert(obj)"
        )
    copy = copied(obj)  # what changes later is the object's own
    backend = load_backend(framework)
    state = read_state(owner_of_method(copy))
    held = {name: held_by(each) for name, each in state.tensors.items()}
    learned = {name: tensor for name, tensor in held.items() if _is_learned(state, name)}
    if not learned:
        raise RuleTypeError(
            f"{name_of(obj)!r} holds no tensor that asks for a gradient. A method that takes the "
            "parameters as an argument, as apply of flax.linen does, is a function of them as it "
            "is: xg.convert(module.apply)"
        )
    others = _named(state, learned)
    fixed = {name: _as_array(tensor) for name, tensor in held.items() if name not in learned}
    recipe = recipe_of_module(copy, name_of(obj), options.library, aliases=others, fixed=fixed)
    function = Function(recipe, None, options.prove)
    parameters = {others[way]: tensor for way, tensor in learned.items()}
    names = dict.fromkeys(others.values())
    return function, {n: backend.tensors.from_numpy(_as_array(parameters[n])) for n in names}


def _is_learned(state: ObjectState, name: str) -> bool:
    tensor = held_by(state.tensors[name])
    if dtype_name(tensor.dtype) not in FLOATS:
        return False
    # The library's own word on the tensor or on its holder comes first.
    described = describe(state.tensors[name]) or describe(state.holders[name])
    if described is not None:
        return described[1]
    # No library knows it: what may get a gradient is a parameter.
    asks = backend_of(tensor).tensors.requires_grad
    return asks is None or asks(tensor)


def _named(state: ObjectState, learned: Mapping[str, Tensor]) -> dict[str, str]:
    names: dict[int, str] = {}
    library_names = {way: (describe(state.tensors[way]) or ("", True))[0] for way in learned}
    # A tensor held in several places has one name: the library's, else the shortest path.
    for way in sorted(learned, key=lambda way: (not library_names[way], way.count("."), len(way))):
        name = library_names[way] or way
        while name in names.values() and id(learned[way]) not in names:
            name += "'"  # another tensor has this name
        names.setdefault(id(learned[way]), name)
    return {way: names[id(tensor)] for way, tensor in learned.items()}


def _as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.array(backend_of(tensor).tensors.to_numpy(tensor))  # which may have shared its memory


def recipe_of_module(
    module: Any,
    name: str,
    library: str,
    *,
    aliases: Mapping[str, str],
    fixed: Mapping[str, Any],
) -> Recipe:
    """Return the recipe of an object that is called with other parameters than its own.

    Args:
        aliases: the name by which each parameter is given, by its path in the object.
        fixed: the other tensors that it holds, as arrays.
    """
    inner = recipe_of_object(module, name, native=False, library=library)
    record_own = inner.record
    assert record_own is not None

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        args, kwargs = _with_parameters(name, aliases, args, kwargs)
        held = {each: trace.value(lift_array(trace, array)) for each, array in fixed.items()}
        return record_own(trace, args, {**kwargs, STATE: {**kwargs[STATE], **held}})

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        args, kwargs = _with_parameters(name, aliases, args, kwargs)
        # The object computes with tensors of its own library.
        home = load_backend(read_state(owner_of_method(module)).home).tensors
        held = {each: home.from_numpy(array) for each, array in fixed.items()}
        return inner.run(args, {**kwargs, STATE: {**kwargs[STATE], **held}})

    signature = inner.signature
    if signature is not None:
        signature = signature.replace(parameters=[PARAMETERS, *signature.parameters.values()])
    return replace(
        inner,
        run=run,
        record=record,
        signature=signature,
        copied=None,
        graphs=GraphSource(prove=_prove_module),
    )


def _prove_module(recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool) -> str:
    # They may differ where a class inside it that is given modules adds to their `.grad`, which
    # no derivative of the object itself has.
    try:
        return prove_code(recipe, variant, leaves, is_call=is_call)
    except DisprovedError:
        # False where a backward adds to `.grad`: only such a one may differ.
        if variant.graphs.second_order:
            raise
        subject = ProofSubject(recipe.subject, None, "")
        return leave_open(subject, "a backward inside it adds to .grad, or differs")


def _with_parameters(
    name: str, aliases: Mapping[str, str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parameters, known = args[0] if args else None, list(dict.fromkeys(aliases.values()))
    if not isinstance(parameters, Mapping):
        raise RuleTypeError(
            f"function {name!r} takes its parameters first, a dict by name, not "
            f"{type(parameters).__name__}"
        )
    for each in known:
        if each not in parameters:
            raise RuleValueError(f"function {name!r} got no parameter {each!r}")
    for each in parameters:
        if each not in known:
            raise RuleValueError(
                f"function {name!r} has no parameter {each!r}{suggest(each, known)}"
            )
    by_path = {path: parameters[other] for path, other in aliases.items()}
    return args[1:], {**kwargs, STATE: {"": None, **by_path}}
