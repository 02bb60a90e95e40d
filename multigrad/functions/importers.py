"""Native custom gradients, unchanged, as Functions for every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backend.discovery import entry_points, load_backend
from ..errors import UnsupportedOp
from ..ground.typed import P, R
from .function import Function


def from_autograd_function(cls: type, *, prove: bool = True) -> Function[..., Any]:
    """Return a `torch.autograd.Function` class as a Function for every framework; also a class of
    another framework whose backend imports such.

    Called as `cls.apply` is: positionally, other values than tensors included. Both styles are
    taken: a forward that gets `ctx`, and one with `setup_context`. Where the class does more than a
    graph holds (asserts something of values, is differentiated twice through another class), torch
    runs the class itself.

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
    """Return a `jax.custom_vjp` function as a Function for every framework; also a function with a
    gradient of its own of another framework whose backend imports such.

    A `jax.custom_jvp` function is taken too, by the transpose of its tangent map, and what
    `jax.custom_gradient` makes.

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


def from_tf_custom_gradient(f: Callable[P, R], *, prove: bool = True) -> Function[P, R]:
    """Return a function decorated with `tf.custom_gradient` as a Function for every framework.

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
    backend = load_backend(framework)
    if backend.imports.import_function is None:
        raise UnsupportedOp(f"backend {framework!r} imports no custom gradients")
    return Function(backend.imports.import_function(native), prove=prove)
