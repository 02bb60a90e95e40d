"""What every test can ask for: a framework to run on, and the same four verbs on each of them.

`backend` runs a test once per backend; one whose framework is not installed is a visible skip, and an error
where `--backends` asks for it. `@pytest.mark.needs("keras")` does the same for any package, with `--require`.
A framework is imported when a test first uses it, never while tests are collected.
"""

from __future__ import annotations

import os

# One thread per worker: the workers of pytest-xdist share few cores, and a sum keeps its order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The same kernels on every machine: oneDNN chooses by processor and rounds differently.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pytest

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]


class NumpyBackend:
    """NumPy itself: gradients come from a lowered function, which carries its own `vjp`."""

    name: ClassVar[str] = "numpy"

    def array(self, array: Array) -> Tensor:
        """Give the framework's tensor with these values and this dtype."""
        return np.array(array)

    def numpy(self, tensor: Tensor) -> Array:
        """Give the tensor's values as a NumPy array of the same dtype (ml_dtypes for bfloat16)."""
        return np.asarray(tensor)

    def vjp(self, f: Callable[..., Tensor], x: Array, cotangent: Array) -> tuple[Array, Array]:
        """Run `f` at `x` and pull `cotangent` back: `(y, gradient of x)`, both NumPy arrays."""
        if not hasattr(f, "vjp"):
            raise TypeError(f"NumPy has no autodiff: give xg.lower(rule, 'numpy'), not {f!r}")
        y, pullback = f.vjp(self.array(x))
        return np.asarray(y), np.asarray(pullback(cotangent))

    def precision(self, dtype: Any) -> AbstractContextManager[Any]:
        """Enter the mode that keeps `dtype` (JAX needs one for 64 bits; `vjp` enters it by itself)."""
        return nullcontext()


class TorchBackend(NumpyBackend):
    """PyTorch: bfloat16 crosses over as its bits, because NumPy has no such dtype."""

    name = "torch"

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

    def vjp(self, f: Callable[..., Tensor], x: Array, cotangent: Array) -> tuple[Array, Array]:
        import torch

        is_function = isinstance(f, type) and issubclass(f, torch.autograd.Function)
        primal = self.array(x).requires_grad_()
        y = f.apply(primal) if is_function else f(primal)
        (gradient,) = torch.autograd.grad(y, primal, self.array(cotangent))
        return self.numpy(y), self.numpy(gradient)


class JaxBackend(NumpyBackend):
    """JAX: 64-bit values live only inside `precision`."""

    name = "jax"

    def array(self, array: Array) -> Tensor:
        import jax.numpy as jnp

        with self.precision(np.asarray(array).dtype):
            return jnp.asarray(array)

    def vjp(self, f: Callable[..., Tensor], x: Array, cotangent: Array) -> tuple[Array, Array]:
        import jax

        with self.precision(np.asarray(x).dtype):
            y, pullback = jax.vjp(f, self.array(x))
            (gradient,) = pullback(self.array(cotangent))
        return self.numpy(y), self.numpy(gradient)

    def precision(self, dtype: Any) -> AbstractContextManager[Any]:
        import jax

        return jax.enable_x64(True) if np.dtype(dtype).itemsize == 8 else nullcontext()


class TensorflowBackend(NumpyBackend):
    """TensorFlow, eager."""

    name = "tensorflow"

    def array(self, array: Array) -> Tensor:
        import tensorflow as tf

        return tf.constant(array)

    def numpy(self, tensor: Tensor) -> Array:
        return np.asarray(tensor.numpy())

    def vjp(self, f: Callable[..., Tensor], x: Array, cotangent: Array) -> tuple[Array, Array]:
        import tensorflow as tf

        primal = self.array(x)
        with tf.GradientTape() as tape:
            tape.watch(primal)
            y = f(primal)
        gradient = tape.gradient(y, primal, output_gradients=self.array(cotangent))
        return self.numpy(y), self.numpy(gradient)


BACKENDS: dict[str, NumpyBackend] = {
    kind.name: kind() for kind in (NumpyBackend, TorchBackend, JaxBackend, TensorflowBackend)
}


@cache
def is_installed(package: str) -> bool:
    return find_spec(package) is not None


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        default="",
        metavar="NAMES",
        help="run backend tests on these only, and fail where one is not installed: jax,torch",
    )
    parser.addoption(
        "--require",
        default="",
        metavar="PACKAGES",
        help="fail, rather than skip, where one of these packages is not installed: keras,optax",
    )


def pytest_configure(config: pytest.Config) -> None:
    asked = split_names(config.getoption("--backends"))
    unknown = [name for name in asked if name not in BACKENDS]
    if unknown:
        raise pytest.UsageError(f"--backends: no backend {unknown}; there are {list(BACKENDS)}")
    required = [*asked, *split_names(config.getoption("--require"))]
    missing = [name for name in required if not is_installed(name)]
    if missing:
        raise pytest.UsageError(f"asked for on the command line but not installed: {missing}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    asked = split_names(metafunc.config.getoption("--backends")) or list(BACKENDS)
    only = metafunc.definition.get_closest_marker("backends")
    names = [name for name in asked if only is None or name in only.args]
    params = [pytest.param(name, marks=pytest.mark.needs(name)) for name in names]
    if only is not None and not names:
        left_out = pytest.mark.skip(reason="--backends leaves out the backends it is for")
        params = [pytest.param(name, marks=left_out) for name in only.args]
    metafunc.parametrize("backend", params, indirect=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        missing = [package for package in mark.args if not is_installed(package)]
        if missing:
            pytest.skip(f"{', '.join(missing)} not installed")


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> NumpyBackend:
    """The backend under test: `name`, `array`, `numpy`, `vjp`, `precision`."""
    return BACKENDS[request.param]
