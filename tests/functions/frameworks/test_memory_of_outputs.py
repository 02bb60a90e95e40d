"""An output of a converted class lies in the memory that the class itself gives it on torch: its
argument's own, that of a view, or memory of its own. So an update in place reaches what it reaches
there, or is the same error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import NativeRuleWarning

from ...harness.own_library import assert_as_in
from ...harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
Tensor = Any
FORWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "another name": lambda x: x.view_as(x),
    "whole slice": lambda x: x[:],
    "a view of a view": lambda x: x.view(x.shape).view_as(x),
    "transposed twice": lambda x: x.t().t(),
    "a part": lambda x: x[:1],
    "detached": lambda x: x.detach(),
    "cast to its dtype": lambda x: x.float(),
    "contiguous": lambda x: x.contiguous(),
    "copied": lambda x: x.clone(),
    "a copy of a view": lambda x: x.view_as(x).clone(),
    "detached and copied": lambda x: x.detach().clone(),
    "copied and detached": lambda x: x.clone().detach(),
    "multiplied by one": lambda x: x * 1,
}


def make_class(forward: Callable[[Tensor], Tensor], keeps: bool) -> Any:
    @torch_class(lambda ctx, grad: grad if grad.shape == (2, 2) else torch.cat([grad, 0 * grad]))
    def Passing(ctx: Any, x: Tensor) -> Tensor:
        y = forward(x)
        if keeps:
            ctx.save_for_backward(y)
        return y

    return Passing


def observe(apply: Callable[[Tensor], Tensor], is_asked: bool, is_on: bool) -> dict[str, Any]:
    """Return what is seen of an output, and what an update of it does."""
    leaf = torch.ones(2, 2, requires_grad=is_asked)
    x = leaf * 2
    with torch.set_grad_enabled(is_on):
        y = apply(x)
    seen = {
        "shares memory": y.data_ptr() == x.data_ptr(),
        "is the argument": y is x,
        "is a view": y._is_view(),
        "asks for a gradient": y.requires_grad,
    }
    try:
        y.mul_(3)
    except RuntimeError as error:
        return {**seen, "error": str(error).partition(" and is being modified")[0]}
    return {**seen, "the argument": x.tolist(), "the output": y.tolist()}


@pytest.mark.parametrize("keeps", [False, True], ids=["plain", "kept"])
@pytest.mark.parametrize("name", FORWARDS)
def test_an_output_has_the_memory_that_its_class_gives_it(name: str, keeps: bool) -> None:
    cls = make_class(FORWARDS[name], keeps)
    converted = xg.convert(cls)
    for is_asked in (False, True):
        for is_on in (True, False):
            own = observe(cls.apply, is_asked, is_on)
            assert observe(converted, is_asked, is_on) == own, (is_asked, is_on)
    assert converted.captures.variants, "it was captured"


def test_what_a_class_returns_twice_is_one_tensor_with_the_gradient_of_its_class() -> None:
    @torch_class(lambda ctx, first, second: 2 * first + 5 * second)
    def Twice(ctx: Any, x: Tensor) -> Any:
        y = 2 * x
        return y, y

    def run(apply: Callable[[Tensor], Any]) -> tuple[bool, list[list[float]]]:
        x = torch.ones(2, requires_grad=True)
        first, second = apply(x)
        loss = (first + 10 * second).sum()
        gradients = torch.autograd.grad(loss, x)
        return first is second, [each.tolist() for each in gradients]

    with pytest.warns(NativeRuleWarning, match="If it returns one tensor twice, its library takes"):
        assert run(xg.convert(Twice)) == run(Twice.apply)


def test_a_queued_callback_of_torchs_engine_runs_once_for_each_backward() -> None:
    calls: list[str] = []

    def queue(ctx: Any, grad: Tensor) -> Tensor:
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: calls.append("called"))
        return 2 * grad

    @torch_class(queue)
    def Queuing(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    def call(ctx: Any, grad: Tensor) -> Tensor:
        with torch.enable_grad():  # where the first call is made in a backward that runs
            inner = grad.detach().requires_grad_()
            xg.convert(Queuing)(inner).sum().backward()
        return grad

    @torch_class(call)
    def Outer(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    Outer.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert calls == ["called"]
    with pytest.raises(xg.TraceError, match=r"'Queuing' .*queues a callback of torch's engine"):
        xg.vjp(xg.convert(Queuing), torch.ones(2).numpy())


# What classes ask of torch's own state while they run: autocast, and the generator's state.


X = np.array([[-1.0, 2.0], [3.0, 0.5]], np.float32)


class UnderAutocast(torch.autograd.Function):
    """Computes its backward under the autocast of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.enabled = torch.is_autocast_enabled("cpu")
        ctx.dtype = torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        x, w = ctx.saved_tensors
        with torch.autocast("cpu", dtype=ctx.dtype, enabled=ctx.enabled):
            return grad_out @ w.t(), x.t() @ grad_out


class Restoring(torch.autograd.Function):
    """Keeps the generator's state, and computes again from there."""

    @staticmethod
    def forward(ctx: Any, x: Any, noise: float) -> Any:
        ctx.state, ctx.noise = torch.get_rng_state(), noise
        ctx.save_for_backward(x)
        drawn = torch.rand_like(x) if noise else 1.0
        return x * x * drawn

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        (x,) = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            drawn = torch.rand_like(x) if ctx.noise else 1.0
        return 2 * x * drawn * grad_out, None


def test_a_class_that_asks_for_autocast_is_captured_without_it(backend: Any) -> None:
    of = xg.convert(UnderAutocast)
    assert_as_in("torch", UnderAutocast.apply, X, 2 * X, of=of, backend=backend)


def test_under_autocast_torch_runs_that_class_as_it_is() -> None:
    ours = xg.convert(UnderAutocast)
    found = []
    for apply in (UnderAutocast.apply, ours):
        x = torch.tensor(X, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = apply(x, 2 * x.detach())
        y.sum().backward()
        found.append((y.dtype, x.grad))
    (dtype, expected), (own, gradient) = found
    assert own == dtype == torch.bfloat16
    assert torch.equal(gradient, expected)


def test_one_that_sets_the_generator_back_and_draws_nothing_is_captured(backend: Any) -> None:
    assert_as_in("torch", Restoring.apply, X, 0.0, of=xg.convert(Restoring), backend=backend)


def test_one_that_draws_the_same_again_is_refused_on_other_frameworks() -> None:
    with pytest.raises(xg.TraceError, match="draws the same numbers again"):
        xg.vjp(xg.convert(Restoring), X, 0.5)
    x = torch.tensor(X, requires_grad=True)
    y = xg.convert(Restoring)(x, 0.5)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, 2 * y)  # the same draws


@pytest.mark.parametrize("ask", [torch.get_rng_state, torch.is_autocast_enabled])
def test_a_rule_does_not_ask_for_it(ask: Any) -> None:
    @xg.register(f"asks_for_{ask.__name__}")
    def asks(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out if ask() is None else grad_out * tin

    with pytest.raises(xg.TraceError, match=f"calls torch.{ask.__name__}, which gives another"):
        xg.show(f"asks_for_{ask.__name__}")


# Losses of a linear layer in chunks, as trainers of language models have them: forward takes the
# gradient of an inner function chunk by chunk, in a Python loop, and adds to what it has made.


F = torch.nn.functional
_DRAWN = np.random.default_rng(0)
X_CHUNKED = _DRAWN.standard_normal((6, 4)).astype(np.float32)
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
    arrays = (X_CHUNKED, WEIGHT) if bias is None else (X_CHUNKED, WEIGHT, bias)
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
    given = [
        None if each is None else backend.array(each) for each in (X_CHUNKED, WEIGHT, LABELS, bias)
    ]
    (loss, means), pull = xg.vjp(xg.convert(Chunked), *given, 2, is_compiled)
    assert backend.numpy(means).shape == (3,)
    expected = as_plainly(3.0, bias)
    slope, slope_weight, _, slope_bias, *_ = pull((loss * 0 + 3, means * 0))
    found = [slope, slope_weight, *([] if bias is None else [slope_bias])]
    np.testing.assert_allclose(backend.numpy(loss), expected[0].numpy(), rtol=1e-5)
    for own, other in zip(found, expected[1:], strict=True):
        np.testing.assert_allclose(backend.numpy(own), other.numpy(), rtol=1e-4, atol=1e-6)
