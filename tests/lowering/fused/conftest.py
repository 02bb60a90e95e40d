"""What kernels are written in here: C; Triton where `TRITON_INTERPRET=1` asks for its interpreter,
which runs a GPU's kernels in NumPy, on tensors of processors (`tox -e triton`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

# What torch has for processors alone: without them plain code there rounds as on a GPU.
ROWS = "torch.one_plus_square,torch.divided"
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True)
def language(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The language, and nothing that was said of the process."""
    monkeypatch.delenv("MULTIGRAD_FUSED", raising=False)
    if IS_INTERPRETED:
        from multigrad_torch.attach.fusing import fused, in_triton

        monkeypatch.setenv("MULTIGRAD_WITHOUT", ROWS)
        monkeypatch.setitem(fused.LANGUAGES, "cpu", in_triton)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        # The interpreter's NumPy warns of 1 / 0, in whichever thread.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.")
        yield "Triton" if IS_INTERPRETED else "C"


@pytest.fixture(autouse=True, scope="session")
def bfloat16() -> None:
    """Triton's interpreter truncates to bfloat16; a GPU rounds."""
    if IS_INTERPRETED:
        from triton.runtime import interpreter

        from multigrad_torch.compat.triton import add_bfloat16

        add_bfloat16(interpreter)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Any:
    """A processor, and a GPU where there is one."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU that torch sees")
    return torch.device(request.param)
