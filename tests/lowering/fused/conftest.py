"""What kernels are written in here: C; Triton where `TRITON_INTERPRET=1` asks for its interpreter,
which runs a GPU's kernels in NumPy, on tensors of processors (`tox -e triton`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

# Rows for processors alone, and for GPUs alone: without them both round alike.
ROWS = "torch.one_plus_square,torch.divided,torch.scaled"
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True)
def language(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The language, and nothing that was said of the process."""
    monkeypatch.delenv("MULTIGRAD_FUSED", raising=False)
    monkeypatch.setenv("MULTIGRAD_NATIVE", "auto")
    if IS_INTERPRETED:
        from multigrad_torch.attach.fusing import fused, triton_kernels

        monkeypatch.setenv("MULTIGRAD_WITHOUT", ROWS)
        monkeypatch.setitem(fused.LANGUAGES, "cpu", triton_kernels)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        # The interpreter's NumPy warns of 1 / 0, in whichever thread.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.")
        yield "Triton" if IS_INTERPRETED else "C"


@pytest.fixture(autouse=True, scope="session")
def interpreter() -> Iterator[None]:
    """Triton's interpreter with a GPU's rounding to bfloat16, and torch's functions and limits."""
    if not IS_INTERPRETED:
        yield
        return
    import torch
    from triton.runtime import interpreter

    from multigrad.core import ops
    from multigrad.engine.lowering.kernel_code import triton_code

    from ...support.triton_interpreter import add_bfloat16, add_libdevice, one_at_a_time

    def on_arrays(name: str) -> Any:
        function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
        return lambda *given: function(*map(torch.from_numpy, given)).numpy()

    add_bfloat16(interpreter)
    own = ("sigmoid", "silu", "sqrt", "pow")  # which on a processor round otherwise
    names = (*triton_code.FUNCTIONS.values(), *own)
    functions = {name: on_arrays(name) for name in names}
    add_libdevice(interpreter, {**functions, "fmod": np.fmod})
    executor = interpreter.GridExecutor
    # Of equal zeros a processor takes the tensor's, not the number's.
    least, most = "tl.where({0} < {1}, {1}, {0})", "tl.where({0} > {1}, {1}, {0})"
    limits = {ops.MAXIMUM: least, ops.MINIMUM: most}
    clip = most.format(least, "{2}")
    rows = {ops.CLIP: clip, ops.RELU6: clip.format("{0}", "0.0", "6.0")}
    rows |= {op: f"libdevice.{op.name}({{}})" for op in (ops.SIGMOID, ops.SILU, ops.SQRT)}
    rows[ops.RELU] = least.format("{0}", "0.0")
    on_gpu = triton_code.language

    def on_processor(dtype: str) -> Any:
        found = on_gpu(dtype)
        by_number = {**found.by_number, **limits}
        return replace(found, by_number=by_number, rows={**found.rows, **rows})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_code, "language", on_processor)
        patch.setattr(executor, "__call__", one_at_a_time(executor.__call__))
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Any:
    """A processor, and a GPU where there is one."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU that torch sees")
    return torch.device(request.param)
