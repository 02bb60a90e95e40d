"""Array functions as rules write them in torch, NumPy and the Array API: what is recorded means the
same there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
F = torch.nn.functional
Tensor = Any
Rule = Callable[[Any, Tensor, Tensor], Tensor]


def tensors() -> tuple[Any, Any]:
    generator = np.random.default_rng(7)
    return generator.normal(size=(2, 4)), generator.normal(size=(2, 4))


def test_the_array_api_records_too(captured: Any, backend: Any) -> None:
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        xp = xg.xp
        kept = xp.top_k_mask(xp.abs(tin), k=2, axis=-1)
        halves = xp.concat([xp.matrix_transpose(grad_out), xp.permute_dims(tin, (1, 0))], axis=1)
        return xp.where(kept, xp.cumulative_sum(grad_out, axis=1), xp.mean(halves, axis=1))

    grad_out, tin = tensors()
    mask = np.abs(tin) >= np.sort(np.abs(tin), axis=1)[:, -2:-1]
    means = np.concatenate([grad_out.T, tin.T], axis=1).mean(1)
    with backend.precision(grad_out.dtype):
        actual = backend.numpy(captured(rule)(None, backend.array(grad_out), backend.array(tin)))
    np.testing.assert_allclose(actual, np.where(mask, np.cumsum(grad_out, 1), means), rtol=1e-13)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            lambda c, g, x: F.pad(g, (4, 4), mode="reflect"),
            "Padding size should be less than the corresponding input dimension",
        ),
        (lambda c, g, x: g / torch.linalg.norm(x, 3), "a matrix norm of order 3"),
        (lambda c, g, x: torch.einsum("ii->i", g), "each once"),
        (lambda c, g, x: g.expand(-1, *g.shape), "keeps no length"),
    ],
)
def test_what_is_not_captured_says_why(rule: Rule, message: str, captured: Any) -> None:
    grad_out, tin = tensors()
    with pytest.raises(xg.TraceError, match=message):
        captured(rule)(None, torch.tensor(grad_out), torch.tensor(tin))
