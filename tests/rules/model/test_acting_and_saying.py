"""What code does beside its gradient is not lost without a word; what is said of it is plain."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import TraceError

from ...harness.torch_class import torch_class

LOG = logging.getLogger(__name__)
X = np.array([-1.0, 2.0], np.float32)


def slope(f: Any) -> Any:
    return xg.vjp(f, X)[1](np.ones_like(X))[0]


@pytest.mark.parametrize("way", ["logger", "module"])
def test_a_rule_or_a_backward_that_logs_does_so_each_time(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    write = {"logger": LOG.info, "module": logging.info}[way]

    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        if write is LOG.info:
            LOG.info("a backward")
        else:
            logging.info("a backward")  # noqa: LOG015
        return 2 * grad_out

    act = xg.activation("ReLU", xg.register(f"logs by {way}")(rule))
    function = xg.function(lambda x: x * 2, lambda grad_out, x: rule(None, grad_out, x))
    for f in (act, function):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            for count in (1, 2, 3):
                np.testing.assert_array_equal(slope(f), [2, 2])
                assert len(caplog.records) == count


def test_a_level_that_nobody_hears_is_no_hindrance(caplog: pytest.LogCaptureFixture) -> None:
    def backward(grad_out: Any, x: Any) -> Any:
        LOG.debug("a backward")
        return grad_out

    with caplog.at_level(logging.WARNING):
        slope(xg.function(lambda x: x * 2, backward, native=False))
    assert not caplog.records


def test_the_errors_of_a_capture_form_no_circle() -> None:
    def branches(x: Any) -> Any:
        return x if float(x.sum()) > 0 else -x

    f = xg.function(branches, lambda g, x: g, native=False)
    outer = xg.function(lambda x: f(x), native=False)
    for failing in (f, f, outer):
        with pytest.raises(TraceError, match="turns a tensor into a Python number") as caught:
            failing(X)
        left: list[tuple[BaseException, tuple[int, ...]]] = [(caught.value, ())]
        while left:
            error, path = left.pop()
            assert id(error) not in path
            path = (*path, id(error))
            left += [(e, path) for e in (error.__cause__, error.__context__) if e is not None]


@pytest.mark.needs("torch")
def test_a_gradients_node_bears_the_name_of_the_class() -> None:
    import torch

    @torch_class(lambda ctx, grad: 2 * grad)
    def Doubled(ctx: Any, x: Any) -> Any:
        return x * 1

    x = torch.ones(3, requires_grad=True)
    y = xg.from_autograd_function(Doubled)(x)  # before torch 2.13 its node ends with it
    found = y.grad_fn
    assert found is not None
    assert type(found).__name__ == found.name() == "DoubledBackward"
