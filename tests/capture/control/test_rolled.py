"""`xg.Capture(rolls=True)`: a loop of Python's, whose turns are alike, is one scan, with the values
and gradients of its steps one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

xp = xg.xp
generator = np.random.default_rng(5)
STEPS = 18
X, W, B = (generator.normal(size=shape) for shape in ((STEPS, 2, 3), (3, 3), (3,)))
spike = xg.activation("Heaviside", "triangular", {"width": 2.0})


def leaky(x: Any, w: Any, b: Any) -> Any:
    """A neuron with a gradient of its own; what it gives is stacked."""
    v, fired = xp.zeros_like(x[0]), []
    for t in range(x.shape[0]):
        v = 0.9 * v + x[t] @ w
        s = spike(v - 0.5)
        v = v - s
        fired.append(s * b)
    return xp.stack(fired)


def adaptive(x: Any, w: Any, b: Any) -> Any:
    """Two things are carried, rows go along another axis, and the first turn begins otherwise."""
    v, rise, total = xp.zeros_like(x[0]), 0.0, 0.0
    seen = []
    turned = xp.moveaxis(x, 0, 1)
    for t in range(x.shape[0]):
        v = 0.8 * v + turned[:, t]
        s = spike(v - xp.abs(b) - rise)
        rise = 0.95 * rise + 0.3 * s
        v = v * (1.0 - s)
        seen.append(v)
        total = total + xp.sum(s)
    return xp.stack(seen, axis=1) * total


def backwards(x: Any, w: Any, b: Any) -> Any:
    """Rows from the last to the first, taken apart before; only the end is read."""
    h, rows = b * xp.ones_like(x[0]), [x[i] for i in range(x.shape[0])]
    for row in reversed(rows):
        h = xp.tanh(h @ w + row) * xp.cos(h) + b
    return h


def every_other(x: Any, w: Any, b: Any) -> Any:
    """A row and the one after it, two further at each turn."""
    h = x[0]
    for i in range(0, STEPS - 1, 2):
        h = xp.sin(h * x[i]) + xp.exp(-h * h) * xp.tanh(x[i + 1] @ w) + b
    return h


def iterated(x: Any, w: Any, b: Any) -> Any:
    """No rows at all: Newton's steps."""
    y = x
    for _ in range(12):
        y = y - (xp.sin(y) - 0.5 * x) / (xp.cos(y) + 2.0)
    return y @ w + b


def twice(x: Any, w: Any, b: Any) -> Any:
    """A loop over what another gave."""
    return leaky(leaky(x, w, b), w, b)


ROLLED = (leaky, adaptive, backwards, every_other, iterated, twice)


def growing(x: Any, w: Any, b: Any) -> Any:
    """What is carried has another shape after each turn."""
    h = x[0]
    for t in range(1, x.shape[0]):
        h = xp.concat([xp.tanh(h * b), xp.sin(x[t])])
        h = h * xp.mean(h) + xp.exp(-h)
    return h


def of_two_before(x: Any, w: Any, b: Any) -> Any:
    """A turn reads what was two turns before."""
    h = [x[0], x[1]]
    for t in range(2, x.shape[0]):
        h.append(xp.tanh(h[t - 1] @ w) + xp.cos(h[t - 2]) * b + x[t])
    return h[-1] + xp.sin(h[-2])


def numbered(x: Any, w: Any, b: Any) -> Any:
    """A number is another one at each turn."""
    h = x[0]
    for t in range(x.shape[0]):
        h = xp.tanh(h @ w) * (1.0 / (t + 1)) + xp.cos(h) + x[t] * b
    return h


UNROLLED = (growing, of_two_before, numbered)


def results(backend: Any, program: Any, *, rolls: bool) -> tuple[Any, list[Any]]:
    f = xg.function(program, capture=xg.Capture(native=False, rolls=rolls))
    y, pull = xg.vjp(f, *map(backend.array, (X, W, B)))
    u = np.cos(np.arange(np.prod(y.shape))).reshape(tuple(y.shape))
    gradients = pull(backend.array(u))
    return f, [None if each is None else backend.numpy(each) for each in (y, *gradients)]


@pytest.mark.backends("numpy", "torch")
@pytest.mark.parametrize("program", (*ROLLED, *UNROLLED), ids=lambda p: p.__name__)
def test_a_rolled_loop_has_the_numbers_of_its_steps(backend: Any, program: Any) -> None:
    with backend.precision(np.float64):
        (f, ours), (_, own) = (results(backend, program, rolls=rolls) for rolls in (True, False))
    for a, b in zip(ours, own, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12 * max(1.0, np.abs(b).max()))
    assert (" scan(" in xg.show(f)) == (program in ROLLED)


def test_a_rolled_loop_has_its_numbers_everywhere(backend: Any) -> None:
    test_a_rolled_loop_has_the_numbers_of_its_steps(backend, adaptive)


@pytest.mark.backends("tensorflow")
def test_a_counted_loop_of_tensorflow_is_rolled(backend: Any, tf: Any) -> None:
    def f(x: Any) -> Any:
        def body(i: Any, v: Any, total: Any) -> Any:
            v = 0.9 * v + x[i]
            return i + 1, tf.tanh(v), total + tf.reduce_sum(v * v)

        start = (0, tf.zeros_like(x[0]), tf.zeros_like(x[0, 0, 0]))
        return tf.while_loop(lambda i, *_: i < STEPS, body, start)[2]

    rolled = xg.function(f, capture=xg.Capture(native=False, rolls=True))
    assert_as_in("tensorflow", f, X, of=rolled, backend=backend, rtol=1e-12, atol=1e-12)
    assert " scan(" in xg.show(rolled)


def test_the_graph_of_a_rolled_loop_does_not_grow_with_its_steps() -> None:
    lines = []
    for count in (STEPS, 4 * STEPS):
        f = xg.function(leaky, capture=xg.Capture(native=False, rolls=True))
        f(np.ones((count, 2, 3)), W, B)
        lines.append(len(xg.show(f).splitlines()))
    assert lines[0] == lines[1]


def test_only_what_has_a_derivative_taken_is_rolled() -> None:
    own = xg.Capture(rolls=True)
    for make in (
        lambda: xg.function(lambda x: x, lambda g, x: g, capture=own),
        lambda: xg.custom_gradient(lambda x: (x, lambda g: g), capture=own),
        lambda: xg.register("rolled_for_a_test", capture=own)(lambda ctx, g, x: g),
    ):
        with pytest.raises(xg.RuleError, match="whose derivative is taken"):
            make()
