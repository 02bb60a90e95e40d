"""Losses of a linear layer in chunks, as trainers of language models have them: forward takes the
gradient of an inner function chunk by chunk, in a Python loop, and adds to what it has made.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
F = torch.nn.functional
_DRAWN = np.random.default_rng(0)
X = _DRAWN.standard_normal((6, 4)).astype(np.float32)
WEIGHT = _DRAWN.standard_normal((5, 4)).astype(np.float32)
BIAS = _DRAWN.standard_normal(5).astype(np.float32)
LABELS = np.array([0, 3, -100, 4, 1, 2])


class ChunkedBase(torch.autograd.Function):
    """What losses of this kind have in common."""

    @classmethod
    def forward(
        cls: Any, ctx: Any, x: Any, weight: Any, labels: Any, bias: Any = None, **options: Any
    ) -> Any:
        rows, is_compiled = options.pop("rows"), options.pop("is_compiled")
        grad_weight, parts, means = torch.zeros_like(weight), [], []
        grad_bias = None if bias is None else torch.zeros_like(bias)
        total = torch.zeros((), device=x.device)
        loss_of = partial(cls.loss_of, all_labels=labels, **options)

        def accumulate(chunk: Any, own: Any) -> Any:
            if grad_bias is None:
                (slope, slope_weight), (loss, mean) = torch.func.grad_and_value(
                    loss_of, argnums=(0, 1), has_aux=True
                )(chunk, weight, own)
            else:
                (slope, slope_weight, slope_bias), (loss, mean) = torch.func.grad_and_value(
                    loss_of, argnums=(0, 1, 3), has_aux=True
                )(chunk, weight, own, bias)
                grad_bias.add_(slope_bias)
            grad_weight.add_(slope_weight)
            total.add_(loss)
            means.append(mean)
            return slope

        if is_compiled:
            accumulate = torch.compile(accumulate)
        count = max(1, x.shape[0] // rows)
        for chunk, own in zip(
            torch.chunk(x, chunks=count, dim=0),
            torch.chunk(labels, chunks=count, dim=0),
            strict=True,
        ):
            torch._dynamo.mark_dynamic(chunk, 0)
            torch._dynamo.mark_dynamic(own, 0)
            parts.append(accumulate(chunk, own))
        ctx.save_for_backward(torch.cat(parts, dim=0), grad_weight, grad_bias)
        return total, torch.stack(means)

    @staticmethod
    def loss_of(
        chunk: Any, weight: Any, labels: Any, bias: Any = None, all_labels: Any = None
    ) -> tuple[Any, Any]:
        logits = chunk @ weight.t()
        if bias is not None:
            logits = logits + bias
        scores = F.log_softmax(logits.float(), dim=-1)
        loss = F.nll_loss(scores, labels, reduction="sum", ignore_index=-100)
        return loss / (all_labels != -100).sum(), logits.mean()

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        slope, slope_weight, slope_bias = ctx.saved_tensors
        if torch.ne(grad, torch.tensor(1.0, device=grad.device)):
            slope, slope_weight = slope * grad, slope_weight * grad
            slope_bias = None if slope_bias is None else slope_bias * grad
        return slope, slope_weight, None, slope_bias


class Chunked(ChunkedBase):
    """One of them, called as a class of a package is."""

    @classmethod
    def forward(
        cls: Any,
        ctx: Any,
        x: Any,
        weight: Any,
        labels: Any,
        bias: Any = None,
        rows: int = 2,
        is_compiled: bool = False,
    ) -> Any:
        return super().forward(ctx, x, weight, labels, bias, rows=rows, is_compiled=is_compiled)

    @staticmethod
    def backward(ctx: Any, grad: Any, other: Any) -> Any:
        return *ChunkedBase.backward(ctx, grad, other), None, None


def as_plainly(scale: float, bias: Any) -> list[Any]:
    """Return the loss and its gradients by torch's own autograd, without chunks."""
    arrays = (X, WEIGHT) if bias is None else (X, WEIGHT, bias)
    x, weight, *rest = (torch.tensor(each, requires_grad=True) for each in arrays)
    logits = F.linear(x, weight, *rest)
    loss = F.cross_entropy(logits, torch.tensor(LABELS))
    found = torch.autograd.grad(loss * scale, [x, weight, *rest])
    return [loss.detach(), *found]


@pytest.mark.parametrize(
    ("bias", "is_compiled"),
    [(None, False), (BIAS, False), (BIAS, True)],
    ids=["without bias", "with bias", "compiled"],
)
def test_a_chunked_loss_has_the_gradients_of_the_whole(
    backend: Any, bias: Any, is_compiled: bool
) -> None:
    given = [None if each is None else backend.array(each) for each in (X, WEIGHT, LABELS, bias)]
    (loss, means), pull = xg.vjp(xg.convert(Chunked), *given, 2, is_compiled)
    assert backend.numpy(means).shape == (3,)
    expected = as_plainly(3.0, bias)
    slope, slope_weight, _, slope_bias, *_ = pull((loss * 0 + 3, means * 0))
    found = [slope, slope_weight, *([] if bias is None else [slope_bias])]
    np.testing.assert_allclose(backend.numpy(loss), expected[0].numpy(), rtol=1e-5)
    for own, other in zip(found, expected[1:], strict=True):
        np.testing.assert_allclose(backend.numpy(own), other.numpy(), rtol=1e-4, atol=1e-6)
