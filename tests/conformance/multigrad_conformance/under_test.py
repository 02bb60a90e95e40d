"""`BackendUnderTest`: a backend as tests use it, made of its public row alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import optree

import multigrad as xg
from multigrad import xp
from multigrad.core.backend.contract import Backend
from multigrad.core.backend.discovery import load_backend

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]


class BackendUnderTest:
    """A backend, as tests use it: `array`, `numpy`, `vjp`, `precision`, and its `row`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<backend {self.name} under test>"

    @property
    def row(self) -> Backend:
        """The public row, as the entry point gives it."""
        return load_backend(self.name)

    def array(self, array: Any) -> Tensor:
        """Return the framework's tensor with these values and this dtype."""
        array = np.array(array)
        with self.precision(array.dtype):
            return self.row.tensors.from_numpy(array)

    def numpy(self, tensor: Tensor) -> Array:
        """Return the values as a NumPy array of the same dtype (ml_dtypes for bfloat16)."""
        return np.asarray(self.row.tensors.to_numpy(tensor))

    def precision(self, dtype: Any) -> AbstractContextManager[Any]:
        """Enter the mode that keeps `dtype`; `vjp` enters it by itself."""
        row = self.row
        return (
            nullcontext()
            if row.tensors.precision is None
            else row.tensors.precision(np.dtype(dtype).name)
        )

    def computes_in(self, dtype: Any) -> bool:
        """Return whether the framework's operators take a dtype, for code that runs as written."""
        with self.precision(dtype):
            x = self.array(np.ones(2, dtype))
            # Some refuse a dtype only when an op runs.
            try:
                _ = x * x + x
            except (NotImplementedError, RuntimeError, TypeError, ValueError):
                return False
        return True

    def vjp(
        self,
        f: Any,
        x: Array,
        cotangent: Array,
        *values: Any,
        view: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Array, Array]:
        """Run `f` at `x` and pull `cotangent` back: `(y, gradient of x)`, both NumPy arrays.

        Args:
            f: what `xg.lower` gives; where the framework has autodiff, also a function of tensors.
            *values: what follows the tensor in the call.
            view: what is done to the tensor first; without autodiff the gradient is that of the
                view.
        """
        with self.precision(np.asarray(x).dtype):
            tensor = self.array(x)
            given = self.array(cotangent)
            # Functions lowered for a framework without autodiff have a `vjp` of their own.
            if self.row.autodiff.vjp is None:
                if not hasattr(f, "vjp"):
                    raise TypeError(f"{self.name} has no autodiff: give what xg.lower returns")
                y, pullback = f.vjp(tensor if view is None else view(tensor), *values)
                return self.numpy(y), self.numpy(pullback(given))
            call = as_function(f)

            def run(tensors: Any) -> list[Tensor]:
                return [call(tensors[0] if view is None else view(tensors[0]), *values)]

            (y,), pull = self.row.autodiff.vjp(run, [tensor])
            (gradient,) = pull([given])
            return self.numpy(y), self.numpy(gradient)


def as_function(native: Any) -> Callable[..., Any]:
    """Return how a native object is called: itself, or a class by its `apply`."""
    return native.apply if isinstance(native, type) else native


def is_installed(package: str) -> bool:
    return find_spec(package) is not None


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def strided(x: Tensor) -> Tensor:
    """Return every second row of a matrix's transpose: a view, if the framework has views."""
    if hasattr(x, "T"):
        return x.T[::2]
    return xp.getitem(xp.swapaxes(x, 0, 1), (slice(None, None, 2),))


def as_tensors(backend: Any, nested: Any) -> Any:
    """Return arrays as the backend's tensors; the rest as it is."""
    return optree.tree_map(
        lambda leaf: backend.array(leaf) if isinstance(leaf, np.ndarray) else leaf,
        nested,
        none_is_leaf=True,
    )


def as_arrays(backend: Any, nested: Any) -> Any:
    """Return tensors as arrays; the rest as it is."""
    return optree.tree_map(
        lambda leaf: backend.numpy(leaf) if hasattr(leaf, "dtype") else leaf,
        nested,
        none_is_leaf=True,
    )


def pull(backend: Any, f: Callable[..., Any], inputs: Any, cotangent: Any = None) -> Any:
    """Return outputs and gradients as arrays; 64-bit inputs in the mode that keeps them.

    Args:
        cotangent: nested like the outputs; an array is that of the first output, the others have
            none; None is ones for each of floats.
    """
    wide = [leaf.dtype for leaf in optree.tree_leaves(inputs) if isinstance(leaf, np.ndarray)]
    with backend.precision(max(wide, key=lambda dtype: dtype.itemsize)):
        outputs, pullback = xg.vjp(f, *as_tensors(backend, inputs))
        leaves, tree = optree.tree_flatten(as_arrays(backend, outputs))
        if isinstance(cotangent, np.ndarray):
            cotangent = optree.tree_unflatten(tree, [cotangent, *(None for _ in leaves[1:])])
        elif cotangent is None:
            is_float = ["float" in str(getattr(y, "dtype", "")) for y in leaves]
            ones = [np.ones_like(y) if f else None for y, f in zip(leaves, is_float, strict=True)]
            cotangent = optree.tree_unflatten(tree, ones)
        gradients = pullback(as_tensors(backend, cotangent))
        return as_arrays(backend, outputs), as_arrays(backend, gradients)
