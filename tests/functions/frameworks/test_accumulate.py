"""`accumulate=`: how the cotangents of an input become one where a function uses it several times;
the same on every framework, or refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

Tensor = Any
X, SCALE = np.array([1.0, -2.0, 4.0], np.float32), np.array([0.5], np.float32)
UP = np.array([1.0, -2.0, 0.5], np.float32)


@xg.custom_gradient
def quantize(x: Tensor, scale: Tensor) -> Any:
    """Rounded to steps; the scale's cotangent is the largest of x's."""

    def grad(upstream: Tensor) -> Any:
        return upstream, xp.max(xp.abs(upstream)) * xp.ones_like(scale)

    return xp.round(x / scale) * scale, grad


def chain(x: Tensor, scale: Tensor) -> Tensor:
    """The calls' cotangents of the scale, the last first: 5, 15 and 30 times max |upstream|."""
    first = quantize(x, scale) * 2.0
    second = quantize(first, scale) * 3.0
    return quantize(second, scale) * 5.0


def scale_gradient(backend: Any, f: Any, up: Any = UP) -> Any:
    given = [backend.array(each) for each in (X, SCALE)]
    return backend.numpy(xg.vjp(f, *given)[1](backend.array(up))[1])


@pytest.mark.parametrize(
    ("accumulate", "expected"),
    [
        ("sum", 100.0),
        ({"x": "sum"}, 100.0),
        ({"scale": "max"}, 60.0),
        ({"scale": "overwrite"}, 10.0),
    ],
)
def test_the_cotangents_of_several_calls_become_one_as_is_said(
    backend: Any, accumulate: Any, expected: float
) -> None:
    f = xg.function(chain, accumulate=accumulate)
    assert scale_gradient(backend, f) == [expected]
    x = backend.array(X)
    grad_x = xg.vjp(f, x, backend.array(SCALE))[1](backend.array(UP))[0]
    np.testing.assert_array_equal(backend.numpy(grad_x), 30 * UP)


def test_the_call_made_last_in_the_forward_writes_over_wherever_its_result_goes(
    backend: Any,
) -> None:
    def parts(x: Tensor, scale: Tensor) -> Tensor:
        early, late = quantize(x * 1.0, scale) * 7.0, quantize(x * 2.0, scale)
        return late + early

    def turned(x: Tensor, scale: Tensor) -> Tensor:
        early, late = quantize(x * 1.0, scale) * 7.0, quantize(x * 2.0, scale)
        return early + late

    for forward in (parts, turned):
        last = xg.function(forward, accumulate={"scale": "overwrite"})
        assert scale_gradient(backend, last) == [2.0]
        largest = xg.function(forward, accumulate={"scale": "max"})
        assert scale_gradient(backend, largest) == [14.0]


def test_nan_passes_through_a_maximum_and_is_written_over_by_the_last(backend: Any) -> None:
    @xg.custom_gradient
    def broken(x: Tensor, scale: Tensor) -> Any:
        return x * 1.0, lambda upstream: (upstream, scale / scale)

    def forward(x: Tensor, scale: Tensor) -> Tensor:
        return quantize(broken(x, scale), scale)

    def gradient(mode: str) -> Any:
        f = xg.function(forward, accumulate={"scale": mode})
        given = [backend.array(X), backend.array(np.zeros(1, np.float32))]
        return backend.numpy(xg.vjp(f, *given)[1](backend.array(UP))[1])

    assert np.isnan(gradient("max")).all()
    assert gradient("overwrite") == [2.0]


def test_nested_scales_have_the_mode_of_their_argument(backend: Any) -> None:
    def forward(x: Tensor, scales: dict[str, Tensor]) -> Tensor:
        return quantize(quantize(x, scales["a"]) * 3.0, scales["a"]) + quantize(x, scales["b"])

    f = xg.function(forward, accumulate={"scales": "max"})
    scales = {name: backend.array(SCALE) for name in "ab"}
    found = xg.vjp(f, backend.array(X), scales)[1](backend.array(UP))[1]
    assert (backend.numpy(found["a"]), backend.numpy(found["b"])) == ([6.0], [2.0])


# No proof: autodiff, beside which a graph is held, adds up.
@pytest.mark.filterwarnings("ignore::multigrad.errors.NotProvenWarning")
def test_calls_within_another_function_become_one_as_they_say(backend: Any) -> None:
    inner = xg.function(chain, accumulate={"scale": "max"})

    def outer(x: Tensor, scale: Tensor) -> Tensor:
        return inner(inner(x, scale), scale)

    assert scale_gradient(backend, xg.function(outer)) == [1800.0]

    def mixed(x: Tensor, scale: Tensor) -> Tensor:
        return inner(x, scale) * scale

    with pytest.raises(xg.TraceError, match=r"'mixed'.*accumulate='max' for 'scale', but mul"):
        xg.function(mixed, native=False)(backend.array(X), backend.array(SCALE))


def test_the_gradient_is_the_frameworks_own_under_its_compiler(backend: Any) -> None:
    f = xg.function(chain, accumulate={"scale": "max"})

    def run(x: Tensor, scale: Tensor) -> Any:
        return xg.vjp(f, x, scale)[1](x * 0.0 + 1.0)[1]

    if backend.name == "numpy":
        pytest.skip("NumPy has no compiler")
    options = {"backend": "aot_eager"} if backend.name == "torch" else {}
    compiled = xg.jit(run, backend.name, **options)
    assert backend.numpy(compiled(backend.array(X), backend.array(SCALE))) == [30.0]


def test_what_is_a_part_of_a_sum_is_refused_with_the_op_and_its_line(backend: Any) -> None:
    def besides(x: Tensor, scale: Tensor) -> Tensor:
        return quantize(x, scale) / scale

    with pytest.raises(xg.TraceError) as caught:
        xg.function(besides, accumulate={"scale": "max"})(backend.array(X), backend.array(SCALE))
    assert "function 'besides' (test_accumulate.py:" in str(caught.value)
    assert "accumulate='max' for 'scale', but div reads it besides" in str(caught.value)
    assert "xg.custom_gradient" in str(caught.value)

    def turned(x: Tensor, scale: Tensor) -> Tensor:
        return xp.fori_loop(0, 3, lambda i, y: quantize(y, scale), x)

    with pytest.raises(xg.TraceError, match=r"'scale', but a loop reads it, whose turns add up"):
        xg.function(turned, accumulate={"scale": "max"})(backend.array(X), backend.array(SCALE))


def test_words_that_mean_nothing_are_refused() -> None:
    with pytest.raises(xg.RuleError, match=r"'chain' says 'mean' for 'scale'; it is 'sum', 'max'"):
        xg.function(chain, accumulate={"scale": "mean"})
    with pytest.raises(xg.RuleError, match=r"names 'scales', .* its arguments are x, scale"):
        xg.function(chain, accumulate={"scales": "max"})
    with pytest.raises(xg.RuleError, match=r"'sum', 'max' or 'overwrite', or one of these for eac"):
        xg.function(chain, accumulate=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(xg.RuleError, match=r"has a backward, which gives one cotangent"):
        xg.function(chain, lambda g, x, s: (g, None), accumulate="max")
    with pytest.raises(xg.RuleError, match=r"native=True: its framework would add up"):
        xg.function(chain, accumulate="max", native=True)
    with pytest.raises(xg.FormatError, match=r"accumulate=, which no document holds"):
        f = xg.function(chain, accumulate={"scale": "max"})
        f(X, SCALE)
        f.to_dict()


@pytest.mark.needs("jax")
@pytest.mark.filterwarnings("ignore::multigrad.errors.NotProvenWarning")  # the same
def test_a_second_call_in_a_trace_of_jax_is_refused() -> None:
    import jax
    import jax.numpy as jnp

    f = xg.function(chain, accumulate={"scale": "max"})

    def once(scale: Any) -> Any:
        return f(jnp.asarray(X), scale).sum()

    def twice(scale: Any) -> Any:
        return once(scale) + once(scale)

    for wrap in (lambda g: g, jax.jit):
        assert wrap(jax.grad(once))(jnp.asarray(SCALE)).item() == 30.0
        assert wrap(jax.grad(once))(jnp.asarray(SCALE)).item() == 30.0
        with pytest.raises(xg.GradientError, match=r"jax adds up what calls give"):
            wrap(jax.grad(twice))(jnp.asarray(SCALE))
    together = xg.function(lambda x, scale: f(x, scale) + f(x * 2.0, scale))
    found = jax.grad(lambda s: together(jnp.asarray(X), s).sum())(jnp.asarray(SCALE))
    assert found.item() == 30.0


@pytest.mark.needs("torch")
def test_a_second_call_in_a_graph_of_torch_is_refused_until_the_first_had_its_backward() -> None:
    import torch

    f = xg.function(chain, accumulate={"scale": "max"})
    x, scale = torch.tensor(X), torch.tensor(SCALE, requires_grad=True)

    def step() -> Any:
        return torch.autograd.grad(f(x, scale).sum(), scale)[0]

    assert step().item() == step().item() == 30.0
    kept = f(x, scale)
    with pytest.raises(xg.GradientError, match=r"'scale'.*torch adds up what calls give"):
        f(x, scale)
    kept.sum().backward()
    assert f(x, scale).requires_grad
    with torch.no_grad():
        assert torch.equal(f(x, scale), f(x, scale))
    with pytest.raises(xg.GradientError, match=r"torch adds up what calls give"):
        torch.func.grad(lambda s: (f(x, s) + f(x, s)).sum())(scale.detach())


@pytest.mark.needs("tensorflow")
def test_a_second_call_on_a_tape_or_in_a_graph_of_tensorflow_is_refused() -> None:
    import tensorflow as tf

    f = xg.function(chain, accumulate={"scale": "max"})
    x, scale = tf.constant(X), tf.Variable(tf.constant(SCALE))

    def once() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(f(x, scale))
        return tape.gradient(loss, scale)

    def twice() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(f(x, scale) + f(x, scale))
        return tape.gradient(loss, scale)

    for run in (once, once, tf.function(once), tf.function(once)):
        assert run().numpy() == [30.0]
    for run in (twice, tf.function(twice)):
        with pytest.raises(xg.GradientError, match=r"tensorflow adds up what calls give"):
            run()
