"""A function that is compiled, with its traces counted and its gradient; a gradient by a tape; what
torch keeps for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import multigrad as xg

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)
OPTIONS: dict[str, dict[str, Any]] = {
    "torch": {"backend": "aot_eager", "fullgraph": True},
    "jax": {},
    "tensorflow": {},
}


class Traced:
    """A function under `xg.jit`, or compiled by its framework alone, which counts its traces."""

    def __init__(
        self, backend: Any, fn: Callable[..., Any], is_ours: bool = True, **options: Any
    ) -> None:
        self.backend = backend
        self.traces = 0
        options = OPTIONS[backend.name] | options
        if backend.name == "torch":
            import torch
            from torch._dynamo.testing import CompileCounterWithBackend

            torch._dynamo.reset()
            self._graphs = options["backend"] = CompileCounterWithBackend(options["backend"])

        def counted(*args: Any, **kwargs: Any) -> Any:
            if backend.name != "torch":  # there, Dynamo counts
                self.traces += 1
            return fn(*args, **kwargs)

        self.fn = xg.jit(counted, **options) if is_ours else self._compiled(counted, options)

    def _compiled(self, fn: Callable[..., Any], options: dict[str, Any]) -> Any:
        if self.backend.name == "torch":
            import torch

            return torch.compile(fn, **options)
        if self.backend.name == "tensorflow":
            import tensorflow as tf

            return tf.function(fn)
        import jax

        return jax.jit(fn)

    def gradient(self, x: Any = X) -> Any:
        _, grad = self.backend.vjp(self.fn, x, np.ones_like(x))
        if self.backend.name == "torch":
            self.traces = self._graphs.frame_count
        return grad


def taped(f: Callable[[Any], Any], **options: Any) -> Callable[[Any], Any]:
    """Return the function that gives the gradient of `sum(f(x))`, with options of its tape's."""
    import tensorflow as tf

    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x, **options)

    return gradient


def kept_by_torch(call: Callable[..., Any], *inputs: Any, besides: Iterable[Any] = ()) -> int:
    """Return the bytes that torch is given to keep, of each memory once, but for these tensors."""
    import torch

    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = call(*inputs)
    del outputs
    for each in besides:
        kept.pop(each.untyped_storage().data_ptr(), None)
    return sum(kept.values())
