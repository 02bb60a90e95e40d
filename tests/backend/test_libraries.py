"""Which code counts as a library's: a framework's wherever it was installed, the user's own
never.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from multigrad.engine.capture.user_code.libraries import is_library_file

from ..harness.hidden import python

PROGRAM = """
import numpy as np
import torch
import torch.nn.functional as F
assert torch.__file__.startswith({folder!r}), torch.__file__

import multigrad as xg

for function in (F.relu, F.silu, F.gelu, F.softplus, lambda x: F.softmax(x, dim=0)):
    x = torch.tensor([0.5, -1.0], requires_grad=True)
    expected, = torch.autograd.grad(function(x).sum(), x)
    f = xg.function(lambda x: function(x) * 1.0, native=False)
    found, = torch.autograd.grad(f(x).sum(), x)
    torch.testing.assert_close(found, expected)
"""


@pytest.mark.needs("torch")
def test_a_framework_from_any_folder_is_a_library(tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "torch").symlink_to(Path(torch.__file__).parent, target_is_directory=True)
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(folder)))
    python(str(program), timeout=240, PYTHONPATH=os.pathsep.join(paths))


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/.local/lib/python3.11/site-packages/einops/einops.py",
        "/usr/lib/python3/dist-packages/torch/functional.py",
        "/home/me/project/venv/lib/python3.11/site-packages/lib/code.py",
        os.__file__,
        "<string>",
        None,
    ],
)
def test_what_an_installer_put_there_is_a_library(file: str | None) -> None:
    assert is_library_file(file)


@pytest.mark.parametrize("file", ["/home/me/project/rules.py", "/home/me/packages/code.py"])
def test_the_users_own_files_are_none(file: str) -> None:
    assert not is_library_file(file)
