"""Functions that no row knows are captured by the trace that their library makes of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness import fresh
from ...harness.own_library import assert_as_in

X = np.array([[1.5, 0.25, 0.7], [0.5, 2.0, 1.1]], "float32")
Calls = dict[str, Callable[[Any], Any]]


def class_of(function: Callable[[Any], Any]) -> Any:
    """Return a class of torch's that computes a function, and its gradient by autograd."""
    import torch

    class Called(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                again = x.detach().requires_grad_()
                return torch.autograd.grad(function(again), again, grad_out)[0]

    return Called


def with_gradient(function: Callable[[Any], Any]) -> Any:
    """Return what computes a function, and its gradient by a tape of TensorFlow's."""
    import tensorflow as tf

    @tf.custom_gradient
    def called(x: Any) -> Any:
        def grad(upstream: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                again = function(x)
            return tape.gradient(again, x, upstream)

        return function(x), grad

    return called


def calls_in_torch(torch: Any) -> Calls:
    F = torch.nn.functional
    return {
        "mvlgamma": lambda x: torch.mvlgamma(x + 2.0, 2),
        "renorm": lambda x: (x * 1.0).renorm_(2, 0, 1.0),
        "gradient": lambda x: torch.gradient(x, dim=1)[0],
        "vander": lambda x: torch.linalg.vander(x),
        "local_response_norm": lambda x: F.local_response_norm(x[None], 2)[0],
        "channel_shuffle": lambda x: F.channel_shuffle(x.T[None, [0, 1, 2, 0], :, None], 2)[0],
        "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :1] * 3.0, dim=1, start=1, end=2),
        "index_put": lambda x: torch.index_put(x, (torch.tensor([0, 1]),), x[:1] * 2.0),
        "accumulated": lambda x: torch.index_put(x, (torch.tensor([1, 1]),), x * 2.0, True),
        "put": lambda x: torch.put(x, torch.tensor([4, -1, 4]), x[1] * 2.0, True),
        "tensorsolve": lambda x: torch.linalg.tensorsolve(x[:, :2], x[:, 2]),
        "i0": lambda x: torch.i0(x) + torch.special.i1(x),
    }


def calls_in_tensorflow(tf: Any) -> Calls:
    return {
        "logaddexp": lambda x: tf.experimental.numpy.logaddexp(x, x[::-1]),
        "kron": lambda x: tf.experimental.numpy.kron(x, x),
        "lstsq": lambda x: tf.linalg.lstsq(x[:, :2], x, l2_regularizer=1.0),
        "total_variation": lambda x: tf.image.total_variation(x[None, :, :, None]),
        "separable_conv2d": lambda x: tf.nn.separable_conv2d(
            x[None, :, :, None], tf.ones((1, 2, 1, 1)), tf.ones((1, 1, 1, 2)), [1] * 4, "SAME"
        ),
        "unsorted_segment_mean": lambda x: tf.math.unsorted_segment_mean(x, [0, 0], 2),
        "unsorted_segment_sqrt_n": lambda x: tf.math.unsorted_segment_sqrt_n(x, 0, 1),
        "local_response_normalization": lambda x: tf.nn.local_response_normalization(
            x[None, None], 1, 0.5, 2.0, 0.75
        ),
        "tensor_diag": lambda x: tf.linalg.tensor_diag_part(tf.linalg.tensor_diag(x) * 2.0),
        "sinc": lambda x: tf.experimental.numpy.sinc(x),
        "TopKV2": lambda x: tf.raw_ops.TopKV2(input=x, k=2).values,
        "ties": lambda x: tf.experimental.numpy.maximum(x, x + tf.nn.relu6(-x)),
    }


# As a mark they are wanted before a library is imported.
NAMES = {
    "torch": "mvlgamma renorm gradient vander local_response_norm channel_shuffle slice_scatter "
    "index_put accumulated put tensorsolve i0",
    "tensorflow": "logaddexp kron lstsq total_variation separable_conv2d unsorted_segment_mean "
    "TopKV2 ties unsorted_segment_sqrt_n local_response_normalization tensor_diag sinc",
}
WRITTEN = {"torch": (calls_in_torch, class_of), "tensorflow": (calls_in_tensorflow, with_gradient)}


@pytest.mark.parametrize(
    ("library", "name"),
    [
        pytest.param(library, name, marks=pytest.mark.needs(library))
        for library, names in NAMES.items()
        for name in names.split()
    ],
)
def test_a_function_without_a_row_has_its_librarys_numbers_and_gradient(
    library: str, name: str, backend: Any
) -> None:
    calls, original = WRITTEN[library]
    call = calls(pytest.importorskip(library))[name]
    function = xg.convert(original(call))
    assert_as_in(library, call, X, of=function, backend=backend, rtol=3e-6, atol=1e-6)
    assert f"by {library}'s own trace of" in str(xg.show(function))


def options_in_jax(jax: Any) -> Calls:
    nn = jax.nn
    return {
        "logsumexp": lambda x: nn.logsumexp(x, axis=1, b=2.0),
        "softmax": lambda x: nn.softmax(x, axis=1, where=x < 1.2),
    }


@pytest.mark.needs("jax")
@pytest.mark.parametrize("name", ["logsumexp", "softmax"])
def test_an_option_that_no_row_takes_is_of_jaxs_own_trace(name: str, backend: Any) -> None:
    call = options_in_jax(pytest.importorskip("jax"))[name]
    function = xg.function(call, native=False, dialect="jax")
    assert_as_in("jax", call, X, of=function, backend=backend, rtol=3e-6, atol=1e-6)
    shown = str(xg.show(function))
    assert f"by jax's own trace of {name}" in shown
    assert "x: T[...]" in shown and "array(" not in shown  # lengths stay open


def refused_in_torch(torch: Any) -> Calls:
    return {
        "for these shapes: aten._pack_padded": lambda x: (
            torch.nn.utils.rnn.pack_padded_sequence(
                x[None], torch.tensor([2]), batch_first=True
            ).data
        ),
        "draws random numbers": lambda x: torch.nn.functional.fractional_max_pool2d(
            x[None, None], 1, 1
        )[0, 0],
        "which is not captured": lambda x: torch.special.airy_ai(x),
        "gives floats of integers": lambda x: x * torch.mvlgamma((x > 0).int() + 2, 2),
    }


def refused_in_tensorflow(tf: Any) -> Calls:
    variable = tf.Variable([[2.0]])
    return {
        "RandomUniform, which has a state": lambda x: tf.image.random_brightness(x, 0.3),
        "Igamma, which has no row": lambda x: tf.math.igamma(x, x),
        "shape follows from values": lambda x: tf.math.segment_sum(x, tf.constant([0, 1])),
        "which is no tensor": lambda x: tf.nn.sufficient_statistics(x, [0])[1],
        "ReadVariableOp, which has a state": lambda x: tf.experimental.numpy.kron(x, variable),
    }


@pytest.mark.parametrize(
    ("library", "refused"),
    [
        pytest.param("torch", refused_in_torch, marks=pytest.mark.needs("torch")),
        pytest.param("tensorflow", refused_in_tensorflow, marks=pytest.mark.needs("tensorflow")),
    ],
)
def test_what_a_library_cannot_trace_is_refused_with_the_reason(
    library: str, refused: Callable[[Any], Calls]
) -> None:
    x, (_, original) = np.array([[1.5, -0.25], [0.5, 2.0]], "float32"), WRITTEN[library]
    for reason, call in refused(pytest.importorskip(library)).items():
        with pytest.raises(xg.errors.TraceError, match=reason):
            xg.vjp(xg.convert(original(call)), x)


IMPORTS_DYNAMO = """
import multigrad as xg, torch
assert "torch._dynamo" not in __import__("sys").modules
aten = torch.ops.aten
rule = xg.register("traced", native=False)(lambda ctx, g, x: aten.silu_backward(g, x))
rule(None, torch.ones(3), torch.ones(3))
act = xg.activation("relu", rule)
print(torch.compile(lambda x: act(x), fullgraph=True, backend="aot_eager")(torch.ones(3)))
"""


@pytest.mark.needs("torch")
def test_what_is_traced_first_leaves_dynamo_and_operators_as_they_are() -> None:
    done = fresh.run(["-c", IMPORTS_DYNAMO], ("torch",))
    assert done.returncode == 0, done.stderr[-2000:]
