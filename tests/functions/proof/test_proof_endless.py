"""A proof ends: code that does not end on numbers that it made up is stopped, and said to be."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import multigrad as xg
from multigrad.command.app import app
from multigrad.errors import NotProvenWarning


@pytest.fixture(autouse=True)
def telling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "all")


def root_in_jax() -> Any:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def root(a: Any) -> Any:
        return jax.lax.while_loop(
            lambda s: jnp.max(jnp.abs(s * s - a)) > 1e-4,
            lambda s: 0.5 * (s + a / s),
            jnp.ones_like(a),
        )

    def forward(a: Any) -> Any:
        s = root(a)
        return s, s

    root.defvjp(forward, lambda s, g: (g / (2 * s),))
    return root


@pytest.mark.needs("jax")
def test_a_compiled_loop_is_not_begun_on_numbers_on_which_it_does_not_end() -> None:
    import jax.numpy as jnp

    root = xg.from_custom_vjp(root_in_jax())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(root(jnp.array([0.25, 4.0])), [0.5, 2.0], rtol=1e-4)
    root = xg.from_custom_vjp(root_in_jax())
    with pytest.warns(NotProvenWarning, match="a loop has not ended after 2,000 turns"):
        np.testing.assert_allclose(root(jnp.full((600,), 4.0)), np.full(600, 2.0), rtol=1e-4)


MODULE = """
import torch


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        s = torch.ones_like(a)
        while not (s * s - a).abs().max() < 1e-4:
            s = 0.5 * (s + a / s)
        ctx.save_for_backward(s)
        return s

    @staticmethod
    def backward(ctx, grad_out):
        (s,) = ctx.saved_tensors
        return grad_out / (2 * s)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * 2
"""


@pytest.mark.needs("torch")
def test_convert_says_what_does_not_end_on_guessed_inputs_and_goes_on(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "newtons_roots.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = CliRunner().invoke(app, ["convert", "newtons_roots"])
    (row,) = (line for line in result.output.splitlines() if ":Root" in line)
    assert "'forward' has not ended after 100,000 steps" in row
    assert "equal" in next(line for line in result.output.splitlines() if ":Twice" in line)
