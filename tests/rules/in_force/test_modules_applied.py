"""A module without parameters that captured code applies is looked at anew at each call: `.eval()`,
`.train()` and its numbers are seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch")


class Holder:
    inner: Any


def ways() -> dict[str, Callable[[Any], Any]]:
    import torch

    def of_class(module: Any) -> Any:
        class Applied(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return module(x)

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                return grad

        return xg.from_autograd_function(Applied)

    def of_attribute(module: Any) -> Any:
        holder = Holder()
        holder.inner = module
        return xg.function(lambda x: holder.inner(x), lambda grad, x: grad)

    def of_helper(module: Any) -> Any:
        def helper(x: Any) -> Any:
            return module(x)

        return xg.function(lambda x: helper(x), lambda grad, x: grad)

    def in_backward(module: Any) -> Any:
        f = xg.function(lambda x: x * 1.0, lambda grad, x: module(grad))

        def gradient(x: Any) -> Any:
            x = x.clone().requires_grad_()
            return torch.autograd.grad(f(x).sum(), x)[0]

        return gradient

    return {
        "lambda": lambda module: xg.function(lambda x: module(x)),
        "partial": lambda module: xg.function(functools.partial(lambda m, x: m(x), module)),
        "module": lambda module: xg.function(module),
        "module and backward": lambda module: xg.function(module, lambda grad, x: grad),
        "pair": lambda module: xg.function(lambda x: module(x), lambda grad, x: grad),
        "custom_gradient": lambda module: xg.custom_gradient(lambda x: (module(x), lambda g: g)),
        "class": of_class,
        "attribute": of_attribute,
        "helper": of_helper,
        "in backward": in_backward,
        "activation": lambda module: xg.activation(lambda x: module(x)),
    }


NAMES = (
    "lambda", "partial", "module", "module and backward", "pair", "custom_gradient", "class",
    "attribute", "helper", "in backward", "activation",
)  # fmt: skip


@pytest.mark.parametrize("way", NAMES)
@pytest.mark.parametrize("first", [True, False])
def test_later_eval_and_train_are_seen(way: str, first: bool) -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(0.5))
    f, x = ways()[way](module), torch.ones(64)
    for training in (first, not first, first):
        module.train(training)
        drops = bool((f(x) == 0).any())
        assert drops is training


@pytest.mark.parametrize("way", NAMES)
def test_a_number_that_changes_is_seen(way: str) -> None:
    import torch

    module, x = torch.nn.LeakyReLU(0.5), torch.full((4,), -1.0)
    f = ways()[way](torch.nn.Sequential(module))
    sign = -1 if way == "in backward" else 1
    for slope in (0.5, 0.25, 0.5):
        module.negative_slope = slope
        given = x if sign == 1 else -x
        expected = torch.ones(4) if sign == -1 else slope * x
        torch.testing.assert_close(f(given), expected)


def test_it_is_seen_in_compiled_code() -> None:
    import torch

    module, x = torch.nn.Dropout(0.5), torch.ones(64)
    f = xg.function(lambda x: module(x), lambda grad, x: grad)
    compiled = torch.compile(lambda x: f(x), backend="aot_eager")
    for training in (True, False, True):
        module.train(training)
        assert bool((compiled(x) == 0).any()) is training


def test_it_is_seen_on_other_frameworks() -> None:
    import torch

    module = torch.nn.LeakyReLU(0.5)
    f = xg.function(lambda x: module(x), lambda grad, x: grad)
    for slope in (0.5, 0.25):
        module.negative_slope = slope
        np.testing.assert_array_equal(f(-np.ones(3, np.float32)), -slope * np.ones(3, np.float32))


@pytest.mark.parametrize("held", ["by nobody", "by itself", "by its class"])
def test_a_module_that_is_made_anew_each_time_is_captured(held: str) -> None:
    import torch

    made = []

    class Scale(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor
            if held == "by itself":
                self.__dict__["itself"] = self
            if held == "by its class":
                made.append(self)

        def forward(self, x: Any) -> Any:
            return x * self.factor

    scaled = xg.function(lambda x: Scale(2.0)(x), native=False, dialect="torch")
    for number in (1.0, 3.0):
        np.testing.assert_array_equal(scaled(torch.full((2,), number)), [2 * number] * 2)


def test_of_two_modules_alike_each_is_looked_at() -> None:
    import copy

    import torch

    class Doubled(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if self.training else x

    flat, deep = Doubled(), Doubled()
    chosen = xg.function(lambda x: (flat if x.ndim == 1 else deep)(x), native=False)
    line, square = torch.ones(2), torch.ones(2, 2)
    for is_training in (True, False, True):
        deep.train(is_training)
        assert chosen(line).tolist() == [2.0, 2.0]
        assert chosen(square)[0].tolist() == [1.0 + is_training] * 2
    copied = xg.function(lambda x: copy.deepcopy(flat)(x), native=False)
    assert copied(line).tolist() == [2.0, 2.0]
