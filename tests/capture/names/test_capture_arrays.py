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


# Rules in torch: each gives a result of tin's shape by torch itself.
TORCH: dict[str, Rule] = {
    "softmax": lambda c, g, x: torch.softmax(x, dim=1) * g,
    "softmax method": lambda c, g, x: x.softmax(0) * g,
    "F.softmax, F.log_softmax": lambda c, g, x: F.softmax(x, -1) * F.log_softmax(g, dim=0),
    "F.softmin": lambda c, g, x: F.softmin(x, dim=1) * g,
    "logsumexp": lambda c, g, x: g / torch.logsumexp(x, 1, keepdim=True),
    "prod": lambda c, g, x: g * torch.prod(x, 1, keepdim=True) + x.prod(),
    "logcumsumexp": lambda c, g, x: torch.logcumsumexp(g, 0) + torch.logcumsumexp(x, dim=-1),
    "cumsum, cumprod": lambda c, g, x: torch.cumsum(g, 0) + x.cumprod(dim=-1),
    "cummax": lambda c, g, x: torch.cummax(g, 1).values + x.cummin(0)[0],
    "sort": lambda c, g, x: torch.sort(g, dim=1, descending=True).values + x.sort(0).values,
    "topk": lambda c, g, x: g * torch.topk(x, 2, dim=1).values.sum(1, keepdim=True),
    "topk of the first axis": lambda c, g, x: g * x.topk(1, 0, largest=False).values,
    "quantile": lambda c, g, x: g - torch.quantile(x, 0.25, dim=1, keepdim=True),
    "count_nonzero": lambda c, g, x: g * torch.count_nonzero(x > 0, dim=0),
    "norms": lambda c, g, x: g / g.norm(p=1) / torch.norm(x, p=3, dim=1, keepdim=True),
    "vector_norm": lambda c, g, x: g / torch.linalg.vector_norm(g, 3, dim=0) / torch.linalg.norm(x),
    "linalg.norm along a dim": lambda c, g, x: g / torch.linalg.norm(x, 1, dim=0, keepdim=True),
    "matmul": lambda c, g, x: g @ x.t() @ x,
    "mm and transpose": lambda c, g, x: torch.mm(torch.mm(g, x.transpose(0, 1)), x),
    "matmul with a constant": lambda c, g, x: (
        torch.matmul(g, torch.eye(4, dtype=torch.float64)) * x
    ),
    "einsum": lambda c, g, x: torch.einsum("ij,kj,kl->il", g, x, x),
    "outer": lambda c, g, x: g + torch.outer(x[:, 0], x[0]),
    "cat": lambda c, g, x: torch.cat([g[:, :2], x[:, 2:]], dim=1),
    "stack": lambda c, g, x: torch.stack([g, x], dim=-1).sum(-1),
    "pad": lambda c, g, x: F.pad(g, (1, 0, 0, 1), value=2.0)[:-1, :-1] * x,
    "flip, roll": lambda c, g, x: (
        torch.flip(g, [1]) + x.roll(1, 0) + x.flip(0, 1) + torch.roll(g, (1, 2), (0, 1))
    ),
    "permute": lambda c, g, x: g.permute(1, 0).reshape(x.shape) + torch.permute(x, (1, 0)).t(),
    "reshape": lambda c, g, x: g.reshape(-1, 2).view(2, 4) * x.flatten().view_as(g),
    "reshape by lengths": lambda c, g, x: g.reshape(g.shape[0], -1) * x,
    "squeeze": lambda c, g, x: g.unsqueeze(0).squeeze(0) + torch.squeeze(x[None], 0),
    "movedim": lambda c, g, x: torch.movedim(g, 0, 1).swapaxes(0, -1) * x,
    "tile, repeat": lambda c, g, x: x[:, :2].repeat(1, 2) + torch.tile(g[:, :1], (1, 4)),
    "repeat_interleave": lambda c, g, x: torch.repeat_interleave(g[:, :2], 2, dim=1) * x,
    "expand": lambda c, g, x: (
        x[:, :1].expand(2, 4) + g[:1].expand(x.shape) + torch.broadcast_to(x[0], (2, 4))
    ),
    "tril, triu": lambda c, g, x: torch.tril(g) + x.triu(diagonal=1),
    "index_select, narrow": lambda c, g, x: (
        g.index_select(1, torch.tensor([3, 2, 1, 0])) + x.narrow(1, 0, 1)
    ),
    "select": lambda c, g, x: g + torch.select(x, 0, 1),
    "indexing": lambda c, g, x: g[:, 1:2] + x[..., -1:] + x[0] + g[-1, None],
    "F.glu": lambda c, g, x: g + F.glu(torch.cat([x, x], 1), dim=1),
    "dot": lambda c, g, x: g * torch.dot(x[0], g[1]),
    "numel": lambda c, g, x: g * x.shape.numel() + sum(tuple(x.shape)) * x.shape.numel(),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_functions_are_recorded_with_torchs_meaning(name: str, captured: Any) -> None:
    grad_out, tin = tensors()
    expected = TORCH[name](None, torch.tensor(grad_out), torch.tensor(tin)).numpy()
    rule = captured(TORCH[name])
    actual = rule(None, grad_out, tin)  # on NumPy: nothing of torch is left
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-14)


NUMPY: dict[str, Rule] = {
    "prod": lambda c, g, x: g * np.prod(x, axis=1, keepdims=True),
    "cumsum": lambda c, g, x: np.cumsum(g, axis=0) + np.cumprod(x, axis=1),
    "cumsum flat": lambda c, g, x: np.reshape(np.cumsum(g), (2, 4)) * x,
    "sort": lambda c, g, x: np.sort(g) + np.sort(x, axis=0),
    "median": lambda c, g, x: g - np.median(x, axis=1, keepdims=True) - np.median(x),
    "quantile": lambda c, g, x: g - np.quantile(x, 0.3) - np.percentile(x, 25, axis=0),
    "count_nonzero": lambda c, g, x: g * np.count_nonzero(x > 0, axis=1, keepdims=True),
    "norm": lambda c, g, x: g / np.linalg.norm(x, 1, axis=0) / np.linalg.norm(g),
    "transpose": lambda c, g, x: (
        np.transpose(np.transpose(g, (1, 0))) + np.transpose(np.transpose(x))
    ),
    "swapaxes, moveaxis": lambda c, g, x: np.swapaxes(np.moveaxis(g, 0, 1), 0, 1) * x,
    "reshape": lambda c, g, x: np.reshape(g, (4, -1)).reshape(x.shape) + np.ravel(x).reshape(2, 4),
    "concatenate": lambda c, g, x: (
        np.concatenate([g[:1], x[1:]], 0) + np.concatenate((g, x), axis=1)[:, 2:6]
    ),
    "stack": lambda c, g, x: np.stack([g, x], axis=1)[:, 0],
    "pad": lambda c, g, x: (
        np.pad(g, ((0, 0), (1, 1)), constant_values=3.0)[:, :4] + np.pad(x, 1)[:2, 2:]
    ),
    "pad by one pair": lambda c, g, x: np.pad(g, (1, 0))[1:, 1:] * x,
    "roll, flip": lambda c, g, x: (
        np.roll(g, 1) + np.flip(x) + np.flip(g, 0) + np.roll(x, -1, axis=1)
    ),
    "tile, repeat": lambda c, g, x: np.tile(g[:, :2], 2) + np.repeat(x[:, :2], 2, axis=1),
    "take": lambda c, g, x: np.take(g, [3, 1, 1, 0], axis=1) + np.take(x, 1, axis=0),
    "tril": lambda c, g, x: np.tril(g) + np.triu(x, 1),
    "broadcast_to": lambda c, g, x: (
        np.broadcast_to(x[0], (2, 4)) + np.broadcast_to(g[:, :1], x.shape)
    ),
    "matmul": lambda c, g, x: np.matmul(g @ x.transpose(), x) @ np.dot(x.swapaxes(0, 1), x),
    "einsum": lambda c, g, x: np.einsum("ij,kj->ik", g, x) @ x + np.outer(g[:, 0], x[0]),
    "tensordot": lambda c, g, x: np.tensordot(g, x, axes=2) * g,
    "squeeze": lambda c, g, x: np.squeeze(g[None], axis=0) * x,
    "new axes": lambda c, g, x: g[None, None, :].sum((0, 1)) + x[None, :, None].sum((0, 2)),
    "indexing": lambda c, g, x: g[:, ::-1] + x[..., 0, None] + x[-1],
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_functions_are_recorded_with_numpys_meaning(name: str, captured: Any) -> None:
    grad_out, tin = tensors()
    expected = NUMPY[name](None, grad_out, tin)
    rule = captured(NUMPY[name])
    actual = rule(None, torch.tensor(grad_out), torch.tensor(tin)).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-14)


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


def test_a_shape_that_the_rule_reads_is_fixed_for_this_capture(captured: Any) -> None:
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out.reshape(grad_out.shape[0] * 2, -1).flip(0).reshape(tin.shape)

    strict = captured(rule)
    for shape in ((2, 4), (3, 2), (2, 2, 2)):
        x = np.arange(float(np.prod(shape))).reshape(shape)
        expected = x.reshape(shape[0] * 2, -1)[::-1].reshape(shape)
        np.testing.assert_array_equal(strict(None, x, x), expected)
