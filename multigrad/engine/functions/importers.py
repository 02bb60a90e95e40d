"""`xg.convert` and the importers: a framework's own custom gradients as Functions, unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from ...core.backend.contract import Backend
from ...core.backend.discovery import entry_points, in_use, load_backend
from ...core.functions.recipe import Recipe
from ...core.rules.capture import Capture, capture_options
from ...core.support.params import P, R
from ...errors import MultigradError, RuleTypeError, UnsupportedOp
from .calls.parameters import BoundFunction
from .code_recipes import CodeRecipe, NoRuleYet
from .custom_gradient import function, refuse_rule
from .function import Function
from .module_conversion import convert_module
from .object_function import MayTakeObjects


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
        RuleTypeError: it is a rule, nothing that is called, or a class of another kind; or its
            own rule is not defined yet (`defvjp`); or an option is for functions alone; or `to` is
            given, and the object has no parameters.
        TraceError: at a call in another framework; it cannot be captured.
    """
    options = capture_options(capture)
    if to is not None:
        return convert_module(obj, to, options)
    if isinstance(obj, Function | BoundFunction):
        return obj
    refuse_rule(obj)
    match = find_custom(obj)
    if match is not None:
        home, recipe = match
        # The others choose a dialect or a way to run, which the framework has decided.
        if options != Capture(prove=options.prove, copies=options.copies):
            raise RuleTypeError(
                f"{named(obj)} is a custom gradient of {home.name}: of capture=xg.Capture(...), it "
                "takes prove and copies alone"
            )
        return as_function(home.name, obj, recipe, options.prove, options.copies)
    refuse_other_class(obj)
    return function(obj, capture=options)


def refuse_other_class(obj: Any) -> None:
    """Raise for a class that is no custom gradient, and for an object of one that is."""
    if isinstance(obj, type):
        raise RuleTypeError(
            f"the class {obj.__name__!r} is not a custom gradient like a torch.autograd.Function; "
            "give an object of it, which is called, or a method"
        )
    if find_custom(type(obj)) is not None:
        raise RuleTypeError(
            f"{named(obj)} is an object of a custom gradient's class: give the class itself"
        )


def named(obj: Any) -> str:
    return repr(getattr(obj, "__name__", None) or type(obj).__name__)


def find_custom(obj: Any) -> tuple[Backend, Any] | None:
    """Return the backend that knows an object as its custom gradient, and its recipe; else None.

    Raises:
        NoRuleYet: it knows it, and its rule is not defined.
    """
    # Only a backend can tell, by reading it: the first that does.
    for backend in in_use() if callable(obj) else ():
        if backend.imports.import_function is None:
            continue
        try:
            return backend, backend.imports.import_function(obj)
        except NoRuleYet:
            raise
        except (TypeError, MultigradError):
            continue
    return None


def is_custom(obj: Any) -> bool:
    """Return whether a backend knows an object as its custom gradient, even without a rule yet."""
    try:
        return find_custom(obj) is not None
    except NoRuleYet:
        return True


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
    """Return a framework's own custom gradient as a Function."""
    import_function = load_backend(framework).imports.import_function
    if import_function is None:
        raise UnsupportedOp(f"backend {framework!r} imports no custom gradients")
    return as_function(framework, native, import_function(native), prove)


def as_function(
    framework: str,
    native: Any,
    recipe: Recipe | CodeRecipe,
    prove: bool = True,
    copies: bool = False,
) -> Function[..., Any]:
    """Return the Function of a framework's own custom gradient, from the recipe read from it."""
    recipe = recipe if isinstance(recipe, Recipe) else recipe.as_recipe()
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
