"""Native custom gradients, unchanged, as Functions for every framework."""

from __future__ import annotations

from typing import Any

from ..backend.discovery import entry_points, load_backend
from ..errors import UnsupportedOp
from .function import Function


def from_autograd_function(cls: type, *, prove: bool = True) -> Function:
    """Return a `torch.autograd.Function` class as a Function for every framework; also a class of
    another framework that imports such (`paddle.autograd.PyLayer`).

    Called as `cls.apply` is: positionally, other values than tensors included. Both styles are
    taken: a forward that gets `ctx`, and one with `setup_context`. Where the class does more than a
    graph holds (asserts something of values, is differentiated twice through another class), torch
    runs the class itself.

    Example:
        >>> clipped = xg.from_autograd_function(ClippedReLU)
        >>> y = clipped(x, 2.0)  # x: a tensor of torch, jax or TensorFlow, or a NumPy array

    Args:
        cls: the class.
        prove: see `custom_gradient`.

    Raises:
        TypeError: it is no such class.
        TraceError: at a call in another framework; it cannot be captured.
        AssertionError: at a call; what it asserts of small tensors, known then, does not hold.
    """
    return import_from(framework_of(cls), cls, prove)


def framework_of(cls: Any) -> str:
    """Return the framework that a class comes from; torch's for what comes from none."""
    modules = [str(getattr(base, "__module__", "")) for base in getattr(cls, "__mro__", ())]
    roots = [module.partition(".")[0] for module in modules]
    return next((root for root in roots if root in entry_points()), "torch")


def from_custom_vjp(f: Any, *, prove: bool = True) -> Function:
    """Return a `jax.custom_vjp` function as a Function for every framework.

    A `jax.custom_jvp` function is taken too, by the transpose of its tangent map, and what
    `jax.custom_gradient` makes.

    Example:
        >>> clip_gradient = xg.from_custom_vjp(clip_gradient)

    Args:
        f: the function.
        prove: see `custom_gradient`.

    Raises:
        TypeError: it is no such function, or its rules are not defined yet.
        TraceError: at a call in another framework; it cannot be captured.
    """
    return import_from("jax", f, prove)


def from_tf_custom_gradient(f: Any, *, prove: bool = True) -> Function:
    """Return a function decorated with `tf.custom_gradient` as a Function for every framework.

    Example:
        >>> log1pexp = xg.from_tf_custom_gradient(log1pexp)

    Args:
        f: the function.
        prove: see `custom_gradient`.

    Raises:
        TypeError: it is no such function.
        TraceError: at a call in another framework; it cannot be captured.
    """
    return import_from("tensorflow", f, prove)


def import_from(framework: str, native: Any, prove: bool = True) -> Function:
    """Return a framework's own custom gradient as a Function.

    Raises:
        UnsupportedOp: that framework's backend imports none.
    """
    backend = load_backend(framework)
    if backend.imports.import_function is None:
        raise UnsupportedOp(f"backend {framework!r} imports no custom gradients")
    return Function(backend.imports.import_function(native), prove=prove)
