"""What each framework's file offers, and how it is brought in."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol, cast

import numpy as np

from multigrad.command.options import prepare_environment

from .cases import Case

Tensor = Any
Array = np.ndarray[Any, Any]
# Of <malloc.h>.
TRIM_THRESHOLD, MMAP_MAX = -1, -4

Rival = Callable[[Any], Any]


class Harness(Protocol):
    """How one framework runs forward and backward of a rival."""

    def describe(self) -> str:
        """Return what runs here and in which version."""
        ...

    def set_threads(self, count: int) -> None:
        """Use this many threads, as far as a running process can still choose."""

    def enter_rule(self, case: Case, stack: ExitStack) -> None:
        """Put the case's rule in force, in multigrad and where it has it in FreeGrad."""

    def list_rivals(self, case: Case) -> dict[str, Rival]:
        """Return the functions to compare, ours among them; call it inside of `enter_rule`."""
        ...

    def make_inputs(self, x: Array, grad_out: Array) -> tuple[Tensor, Tensor]:
        """Return the framework's tensors."""
        ...

    def build_step(self, rival: Rival, x: Tensor, grad_out: Tensor) -> Callable[[], Any]:
        """Return a call of forward and backward that gives `(output, gradient)`, finished."""
        ...

    def build_copy(self, x: Tensor) -> Callable[[], Any]:
        """Return a call that copies x."""
        ...

    def count_kept_bytes(self, rival: Rival, x: Tensor, grad_out: Tensor) -> int | None:
        """Return the bytes that forward keeps for backward, or None where they cannot be seen."""
        ...

    def to_numpy(self, tensor: Tensor) -> Array:
        """Return a tensor's values."""
        ...


def load(backend: str) -> Harness:
    """Import a framework's file, and with it the framework."""
    prepare_environment()
    return cast(Harness, importlib.import_module(f".runners.on_{backend}", __package__))


def prepare_threads(count: int, on_gpu: bool = False) -> None:
    """Set what the frameworks read once, at import."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(count)
    os.environ["TF_NUM_INTEROP_THREADS"] = str(count)
    os.environ["NPROC"] = str(count)  # read by XLA on the CPU
    # A bench of CPU code: elsewhere a call returns before its work is done.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if not on_gpu:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def keep_memory() -> None:
    """Ask the C library to keep freed memory, as far as it has such a switch (glibc does).

    Where a temporary of 4 MB lies in memory depends on what was freed before it: fresh pages made
    the same NumPy code take seven times as long. A training that runs for a while has its memory.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    set_option(TRIM_THRESHOLD, 1 << 30)
    set_option(MMAP_MAX, 0)


def make_training(batch: int, units: int, classes: int = 10) -> tuple[list[Any], Any, Any]:
    """Return the weights of three layers, a batch and its targets, in float32."""
    draw = np.random.default_rng(0).standard_normal
    shapes = ((units, units), (units, units), (units, classes))
    weights = [(draw(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]
    x, y = (draw((batch, n)).astype(np.float32) for n in (units, classes))
    return weights, x, y


def make_values(size: int) -> tuple[Array, Array]:
    """Return an input and a cotangent, the same in every run: normal numbers in float32."""
    generator = np.random.default_rng(size)
    x = generator.standard_normal(size, dtype=np.float32)
    return x, generator.standard_normal(size, dtype=np.float32)
