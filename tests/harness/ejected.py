"""What ejected files compute, bit by bit: the same calls with multigrad's objects, and in a process
where multigrad cannot be imported.

Run as `python ejected.py BACKEND FOLDER`: each file of the folder, on the calls that a pickle there
names; what they give is left beside it. This file imports nothing of multigrad.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

CALLS, RESULTS = "calls.pickle", "results.pickle"
EDGES = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 1e-6, -3e-5, 0.3, -0.7, 6.0, 7.5]
EDGES += [float("inf"), float("-inf"), float("nan"), 65504.0, -1e-7, 1.5]


def make_inputs() -> list[np.ndarray[Any, Any]]:
    """Return edges in every dtype, and in float32 arrays of other shapes and layouts."""
    finite = [number for number in EDGES if abs(number) < 100.0]
    inputs = [np.array(EDGES, dtype) for dtype in ("float16", "float32", "float64")]
    inputs.append(np.array(EDGES, ml_dtypes.bfloat16))
    single = np.array(finite[:12], "float32")
    return [*inputs, single, single.reshape(3, 4).T, np.zeros(0, "float32"), single[4]]


def cotangent_of(y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a cotangent with zeros, and infinities where there are many numbers."""
    numbers = np.linspace(-3.0, 2.0, y.size, dtype=np.float64)
    if y.size > 12:
        numbers[[1, 5, 8, 9]] = np.inf, np.nan, 0.0, -0.0
    return numbers.astype(y.dtype).reshape(y.shape)


def run(
    backend: str, call: Callable[..., Any], inputs: list[Any], values: tuple[Any, ...]
) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Return what a function of tensors gives, then its gradients, as bytes; NaN is one number."""
    found = [np.array(a) for a in VERBS[backend](call, inputs, values)]
    for a in found:
        a[a != a] = np.nan if a.dtype.kind in "fV" else 0  # noqa: PLR0124
    return [(a.dtype.name, a.shape, a.tobytes()) for a in found]


def run_numpy(call: Any, inputs: list[Any], values: tuple[Any, ...]) -> list[Any]:
    outputs, pullback = call.vjp(*inputs, *values)
    single = not isinstance(outputs, tuple)
    ys = [outputs] if single else [*outputs]
    cotangents = [cotangent_of(y) for y in ys]
    gradients = pullback(cotangents[0] if single else tuple(cotangents))
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    again = call(*inputs, *values)
    return [*ys, *([again] if single else again), *(g for g in gradients if g is not None)]


def run_torch(call: Any, inputs: list[Any], values: tuple[Any, ...]) -> list[Any]:
    import torch

    def tensor(array: Any) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(np.asarray(array))

    def array(x: Any) -> Any:
        x = x.detach()
        if x.dtype == torch.bfloat16:
            return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return x.numpy()

    xs = [tensor(x).requires_grad_(x.dtype.kind in "fV") for x in inputs]
    outputs = call(*xs, *values)
    ys = [*outputs] if isinstance(outputs, tuple) else [outputs]
    carrying = [y for y in ys if y.requires_grad]
    given = [tensor(cotangent_of(array(y))) for y in carrying]
    wrt = [x for x in xs if x.requires_grad]
    found = torch.autograd.grad(carrying, wrt, given, allow_unused=True, create_graph=False)
    return [array(t) for t in (*ys, *found) if t is not None]


def run_jax(call: Any, inputs: list[Any], values: tuple[Any, ...]) -> list[Any]:
    import jax

    wide = any(x.dtype.itemsize == 8 for x in inputs)
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        outputs, pull = jax.vjp(lambda *xs: call(*xs, *values), *map(jax.numpy.asarray, inputs))
        single = not isinstance(outputs, tuple)
        ys = [np.asarray(y) for y in ([outputs] if single else outputs)]
        given = [jax.numpy.asarray(cotangent_of(y)) for y in ys]
        gradients = pull(given[0] if single else tuple(given))
        kept = [np.asarray(g) for g in gradients if g.dtype != jax.dtypes.float0]
    return [*ys, *kept]


def run_tensorflow(call: Any, inputs: list[Any], values: tuple[Any, ...]) -> list[Any]:
    import tensorflow as tf

    xs = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        for x in xs:
            tape.watch(x)
        outputs = call(*xs, *values)
    ys = [*outputs] if isinstance(outputs, tuple) else [outputs]
    given = [tf.constant(cotangent_of(y.numpy())) for y in ys]
    found = tape.gradient(ys, xs, output_gradients=given)
    return [t.numpy() for t in (*ys, *found) if t is not None]


VERBS = {"numpy": run_numpy, "torch": run_torch, "jax": run_jax, "tensorflow": run_tensorflow}


class Absent:
    """Finds no package of multigrad's."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0].startswith("multigrad"):
            raise ModuleNotFoundError(f"{name} is not here")


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (name,) = module.__all__
    return getattr(module, name)


def main(backend: str, folder: Path) -> None:
    sys.meta_path.insert(0, Absent())  # type: ignore[arg-type]
    calls = pickle.loads((folder / CALLS).read_bytes())
    found: dict[str, Any] = {}
    for name, given in calls.items():
        function = load(folder / f"{name}.py")
        found[name] = [run(backend, function, inputs, values) for inputs, values in given]
    assert not [name for name in sys.modules if name.startswith("multigrad")]
    (folder / RESULTS).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
