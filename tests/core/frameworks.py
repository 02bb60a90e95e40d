"""The same verbs on each framework, as its users write them: tensors, gradients, compiled code.

`ways` are those in which a framework runs a gradient: eagerly, compiled, and by its transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeAlias

import numpy as np

import multigrad as xg

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]
Forward: TypeAlias = Callable[..., Tensor]


class NumpyBackend:
    """NumPy, which has no autodiff: gradients come from `xg.vjp`, or a lowered function's `vjp`."""

    name: ClassVar[str] = "numpy"
    ways: ClassVar[tuple[str, ...]] = ("eager",)

    def array(self, array: Array) -> Tensor:
        """Give the framework's tensor with these values and this dtype."""
        return np.array(array)

    def numpy(self, tensor: Tensor) -> Array:
        """Give the tensor's values as a NumPy array of the same dtype (ml_dtypes for bfloat16)."""
        return np.asarray(tensor)

    def vjp(self, f: Forward, x: Array, cotangent: Array) -> tuple[Array, Array]:
        """Run `f` at `x` and pull `cotangent` back: `(y, gradient of x)`, both NumPy arrays."""
        if hasattr(f, "vjp"):
            y, pullback = f.vjp(self.array(x))
            return np.asarray(y), np.asarray(pullback(cotangent))
        y, pull = xg.vjp(f, self.array(x))
        return np.asarray(y), np.asarray(pull(cotangent)[0])

    def gradient(self, f: Forward, x: Array, way: str = "eager") -> Array:
        """Return the gradient of the sum of `f(x)`, run in one of `ways`."""
        return self.vjp(f, x, np.ones_like(x))[1]

    def second(self, f: Forward, x: Array) -> Array:
        """Return the gradient of the sum of the gradient."""
        raise NotImplementedError(f"{self.name} has no autodiff")

    def precision(self, dtype: Any) -> AbstractContextManager[Any]:
        """Enter the mode that keeps `dtype` (JAX needs one for 64 bits; `vjp` enters it by
        itself).
        """
        return nullcontext()


class TorchBackend(NumpyBackend):
    """PyTorch: bfloat16 crosses over as its bits, because NumPy has no such dtype."""

    name = "torch"
    ways = ("eager", "compiled", "func", "vmap")

    def array(self, array: Array) -> Tensor:
        import torch

        values = np.array(array)
        if values.dtype.name == "bfloat16":
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(values)

    def numpy(self, tensor: Tensor) -> Array:
        import torch

        values = tensor.detach().cpu()
        if values.dtype == torch.bfloat16:
            import ml_dtypes

            return values.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return values.numpy()

    def vjp(self, f: Forward, x: Array, cotangent: Array) -> tuple[Array, Array]:
        import torch

        is_function = isinstance(f, type) and issubclass(f, torch.autograd.Function)
        primal = self.array(x).requires_grad_()
        y = f.apply(primal) if is_function else f(primal)
        (gradient,) = torch.autograd.grad(y, primal, self.array(cotangent))
        return self.numpy(y), self.numpy(gradient)

    def gradient(self, f: Forward, x: Array, way: str = "eager") -> Array:
        import torch

        if way == "compiled":
            f = torch.compile(f, backend="aot_eager", fullgraph=True)
        if way in ("eager", "compiled"):
            return super().gradient(f, x)
        gradient = torch.func.grad(lambda tin: f(tin).sum())
        if way == "vmap":
            gradient = torch.func.vmap(gradient)
        return self.numpy(gradient(self.array(x)))

    def second(self, f: Forward, x: Array) -> Array:
        import torch

        primal = self.array(x).requires_grad_()
        (gradient,) = torch.autograd.grad(f(primal).sum(), primal, create_graph=True)
        return self.numpy(torch.autograd.grad(gradient.sum(), primal)[0])


class JaxBackend(NumpyBackend):
    """JAX: 64-bit values live only inside `precision`."""

    name = "jax"
    ways = ("eager", "compiled", "vmap")

    def array(self, array: Array) -> Tensor:
        import jax.numpy as jnp

        with self.precision(np.asarray(array).dtype):
            return jnp.asarray(array)

    def vjp(self, f: Forward, x: Array, cotangent: Array) -> tuple[Array, Array]:
        import jax

        with self.precision(np.asarray(x).dtype):
            y, pullback = jax.vjp(f, self.array(x))
            (gradient,) = pullback(self.array(cotangent))
        return self.numpy(y), self.numpy(gradient)

    def gradient(self, f: Forward, x: Array, way: str = "eager") -> Array:
        import jax

        gradient = jax.grad(lambda tin: f(tin).sum())
        transforms: dict[str, Any] = {"compiled": jax.jit, "vmap": jax.vmap}
        gradient = transforms.get(way, lambda function: function)(gradient)
        with self.precision(x.dtype):
            return self.numpy(gradient(self.array(x)))

    def second(self, f: Forward, x: Array) -> Array:
        import jax

        first = jax.grad(lambda tin: f(tin).sum())
        return self.numpy(jax.grad(lambda tin: first(tin).sum())(self.array(x)))

    def precision(self, dtype: Any) -> AbstractContextManager[Any]:
        import jax

        return jax.enable_x64(True) if np.dtype(dtype).itemsize == 8 else nullcontext()


class TensorflowBackend(NumpyBackend):
    """TensorFlow, eager, in graphs, and compiled by XLA."""

    name = "tensorflow"
    ways = ("eager", "graph", "compiled")

    def array(self, array: Array) -> Tensor:
        import tensorflow as tf

        return tf.constant(array)

    def numpy(self, tensor: Tensor) -> Array:
        return np.asarray(tensor.numpy())

    def vjp(self, f: Forward, x: Array, cotangent: Array) -> tuple[Array, Array]:
        import tensorflow as tf

        primal = self.array(x)
        with tf.GradientTape() as tape:
            tape.watch(primal)
            y = f(primal)
        gradient = tape.gradient(y, primal, output_gradients=self.array(cotangent))
        return self.numpy(y), self.numpy(gradient)

    def gradient(self, f: Forward, x: Array, way: str = "eager") -> Array:
        import tensorflow as tf

        def gradient(tin: Tensor) -> Tensor:
            with tf.GradientTape() as tape:
                tape.watch(tin)
                y = f(tin)
            return tape.gradient(y, tin)

        if way != "eager":
            gradient = tf.function(gradient, jit_compile=way == "compiled")
        return self.numpy(gradient(self.array(x)))

    def second(self, f: Forward, x: Array) -> Array:
        import tensorflow as tf

        primal = self.array(x)
        with tf.GradientTape() as outer:
            outer.watch(primal)
            with tf.GradientTape() as inner:
                inner.watch(primal)
                y = f(primal)
            gradient = inner.gradient(y, primal)
        return self.numpy(outer.gradient(gradient, primal))


BACKENDS: dict[str, NumpyBackend] = {
    kind.name: kind() for kind in (NumpyBackend, TorchBackend, JaxBackend, TensorflowBackend)
}
