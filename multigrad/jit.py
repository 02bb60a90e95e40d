"""`xg.jit`: the framework's compiler, keyed by the rule in force."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .errors import BackendNotFound, MultigradError
from .lowering.backend import Backend, backend_of, load_backend


def jit(
    fn: Callable[..., Any] | None = None, framework: str | None = None, **options: Any
) -> Callable[..., Any]:
    """Compile a function with `jax.jit`, `torch.compile` or `tf.function`; a changed rule retraces.

    Numeric params of the rule in force are hidden run-time arguments, so a changed number does not retrace.

    Example:
        >>> step = xg.jit(step)
        >>> with xg.use("triangular", params={"width": 0.5}):
        ...     step(weights, batch)

    Args:
        fn: the function; without it, a decorator is returned.
        framework: "torch", "jax" or "tensorflow"; by default that of the first tensor among the arguments.
        **options: handed to the framework's compiler (`backend="aot_eager"`, `static_argnums=...`,
            `jit_compile=True`).

    Raises:
        BackendNotFound: the framework is unknown, or no argument is a tensor.
    """
    if fn is None:
        return functools.partial(jit, framework=framework, **options)
    if not callable(fn):
        raise MultigradError(f"jit needs a function, got {type(fn).__name__}")
    compiled: dict[str, Callable[..., Any]] = {}
    if framework is not None:
        backend = load_backend(framework)
        compiled[backend.name] = _compile(backend, fn, options)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        name = framework
        if name is None:
            backend = _owner(fn, (args, kwargs))
            name = backend.name
            if name not in compiled:
                compiled[name] = _compile(backend, fn, options)
        return compiled[name](*args, **kwargs)

    return call


def _compile(
    backend: Backend, fn: Callable[..., Any], options: dict[str, Any]
) -> Callable[..., Any]:
    if backend.jit is None:
        raise BackendNotFound(f"backend {backend.name!r} has no compiler; call the function itself")
    return backend.jit(fn, options)


def _owner(fn: Callable[..., Any], arguments: Any) -> Backend:
    """Return the backend of the first tensor among the arguments."""
    import optree

    for leaf in optree.tree_leaves(arguments):
        try:
            backend = backend_of(leaf)
        except BackendNotFound:
            continue
        if backend.jit is not None:
            return backend
    name = getattr(fn, "__name__", "the function")
    raise BackendNotFound(
        f"xg.jit cannot tell the framework of {name!r}: no argument is a tensor. "
        f"Say it: xg.jit(fn, framework='jax')"
    )
