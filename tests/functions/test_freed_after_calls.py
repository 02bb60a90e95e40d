"""What a call was given, made and referred to is freed with it, by reference counts alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

X = np.array([0.5, -1.0, 2.0], np.float32)


class Slope:
    """An object of the user's that code refers to."""

    value = 2.0


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pair(slope: Slope) -> Any:
    return xg.function(lambda x: x * slope.value, lambda upstream, x: upstream * slope.value)


def gradient_in_closure(slope: Slope) -> Any:
    return xg.custom_gradient(
        lambda x: (x * slope.value, lambda upstream: upstream * slope.value * x)
    )


def as_written(slope: Slope) -> Any:
    return xg.function(
        lambda x: x * (slope.value if bool(x[0] > 9) else 1.0),
        lambda upstream, x: upstream * slope.value,
        native=True,
    )


def given(slope: Slope) -> Any:
    scaled = xg.function(
        lambda x, slope: x * slope.value, lambda upstream, x, slope: (upstream * slope.value, None)
    )
    return lambda x: scaled(x, slope)


@pytest.mark.parametrize("make", [pair, gradient_in_closure, as_written, given])
def test_what_a_function_refers_to_is_freed_with_it(
    make: Callable[[Slope], Any], backend: Any
) -> None:
    if make is as_written and backend.name == "jax":
        pytest.skip("jax's own custom_vjp, made for the call, is a cycle of references")
    for _ in range(2):  # the first call of a process also imports
        slope = Slope()
        function, alive = make(slope), weakref.ref(slope)
        pull(backend, function, (X,))
        del function, slope
    assert alive() is None


@pytest.mark.needs("torch")
def test_tensors_of_a_first_call_are_freed_whatever_its_class_does() -> None:
    import torch

    class Scales(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * x * upstream[0]

    class Looks(Scales):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * float(len(x.tolist()))

    class Miscounts(Scales):
        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            return upstream[0], upstream[0]

    looks = xg.function(lambda x: x * float(len(x.tolist())), lambda g, x: g * x)
    for function in (*map(xg.convert, (Scales, Looks, Miscounts)), looks):
        x = torch.tensor(X, requires_grad=True)
        try:
            y = function(x)
            y.sum().backward()
            refs = [weakref.ref(x), weakref.ref(y), weakref.ref(y.grad_fn)]
        except xg.GradientError:
            refs = [weakref.ref(x)]
        del x
        y = None
        assert [ref() for ref in refs] == [None] * len(refs), function


@pytest.mark.needs("torch")
def test_a_module_among_the_arguments_is_freed_with_its_parameters() -> None:
    import torch

    class Weighs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, layer: Any) -> Any:
            ctx.layer = layer
            return x * layer.weight[0]

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            return upstream[0] * ctx.layer.weight[0], None

    function = xg.convert(Weighs)
    for _ in range(2):
        layer = torch.nn.Linear(3, 1)
        function(torch.tensor(X, requires_grad=True), layer).sum().backward()
        refs = weakref.ref(layer), weakref.ref(layer.weight)
        del layer
        assert [ref() for ref in refs] == [None, None]
