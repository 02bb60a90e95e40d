"""What torch.compile and jax.jit compile never keeps a rule that is no longer in force."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.models.surrogates import triangle, window
from ..harness.traced import Traced, X

pytestmark = pytest.mark.backends("torch", "jax")
Tensor = Any


def compiled(backend: Any, f: Any, **options: Any) -> Traced:
    return Traced(backend, f, is_ours=False, **options)


def with_breaks(backend: Any) -> dict[str, bool]:
    return {"fullgraph": False} if backend.name == "torch" else {}


def test_changed_rule_is_followed_and_an_earlier_one_is_a_cache_hit(backend: Any) -> None:
    traced = compiled(backend, xg.activation("Heaviside"))
    nothing = np.zeros_like(X)
    np.testing.assert_array_equal(traced.gradient(), nothing)
    for rule, expected, count in [
        ("triangular", triangle(X), 2),
        ("rectangular", window(X), 3),
        ("triangular", triangle(X), 3),
    ]:
        with xg.use(rule):
            np.testing.assert_allclose(traced.gradient(), expected, rtol=1e-6)
        assert traced.traces == count
        np.testing.assert_array_equal(traced.gradient(), nothing)
        assert traced.traces == count


def test_changed_params_are_followed_and_equal_numbers_are_a_cache_hit(backend: Any) -> None:
    traced = compiled(backend, xg.activation("Heaviside"))
    two = backend.array(np.array(2.0, np.float32))
    widths = [0.5, 2.0, 2, two, np.float32(0.5), 1e6, 0.5]
    for width, count in zip(widths, [1, 2, 2, 3, 3, 4, 4], strict=True):
        with xg.use("triangular", {"width": width}):
            np.testing.assert_allclose(traced.gradient(), triangle(X, float(width)), rtol=1e-6)
        assert traced.traces == count


def test_nested_use_and_changed_scope_are_followed(backend: Any) -> None:
    traced = compiled(backend, xg.activation("Heaviside"))
    with xg.use("triangular", scope="activations"):
        with xg.use("scale", {"s": 3.0}, scope="params"):
            np.testing.assert_allclose(traced.gradient(), triangle(X), rtol=1e-6)
        with xg.use("scale", {"s": 3.0}, scope=("params", "activations")):
            np.testing.assert_array_equal(traced.gradient(), np.full_like(X, 3.0))
        np.testing.assert_allclose(traced.gradient(), triangle(X), rtol=1e-6)


def test_redefined_rule_is_followed_by_use_and_by_a_layer_on_every_thread(
    backend: Any, half: Any
) -> None:
    own, plain = xg.activation("Linear", rule="half of it"), xg.activation("Linear")
    traced = compiled(backend, lambda x: own(x) + plain(x))
    with xg.use("half of it"):
        np.testing.assert_array_equal(traced.gradient(), np.full_like(X, 1.0))

    @xg.register("half of it", override=True)
    def quarter(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return 0.25 * grad_out

    with xg.use("half of it"):
        np.testing.assert_array_equal(traced.gradient(), np.full_like(X, 0.5))
    found = []
    thread = threading.Thread(target=lambda: found.append(traced.gradient()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], np.full_like(X, 1.25))


def test_unregistered_rule_of_a_layer_is_an_error_and_not_kept(backend: Any, half: Any) -> None:
    own = xg.activation("Linear", rule="half of it")
    traced = compiled(backend, own, **with_breaks(backend))
    np.testing.assert_array_equal(traced.gradient(), np.full_like(X, 0.5))
    xg.unregister("half of it")
    with pytest.raises(xg.RuleError, match="half of it"):
        traced.gradient()


def test_changed_key_is_followed_and_an_equal_one_is_a_cache_hit(backend: Any) -> None:
    act = xg.activation("Linear")
    traced = compiled(backend, act)
    drawn = {}
    for seed, key, count in [(1, 1, 1), (2, 2, 2), (1, 1, 2), (2, (0, 2), 2)]:
        with xg.use("full_jam", key=key):
            found = traced.gradient()
        with xg.use("full_jam", key=key):
            np.testing.assert_array_equal(found, backend.vjp(act, X, np.ones_like(X))[1])
        np.testing.assert_array_equal(found, drawn.setdefault(seed, found))
        assert traced.traces == count
    assert not np.array_equal(drawn[1], drawn[2])


def test_use_inside_of_the_compiled_function_acts(backend: Any) -> None:
    act = xg.activation("Heaviside")

    def inside(x: Tensor) -> Tensor:
        with xg.use("triangular", {"width": 2.0}):
            y = act(x)
        return y + act(x)

    decorated = xg.use("triangular", {"width": 2.0})(act)
    for f, added in ((inside, 3.0), (decorated, 0.0)):
        traced = compiled(backend, f, **with_breaks(backend))
        for _ in range(2):
            np.testing.assert_allclose(traced.gradient(), triangle(X, 2.0), rtol=1e-6)
            with xg.use("scale", {"s": 3.0}):
                np.testing.assert_allclose(traced.gradient(), triangle(X, 2.0) + added, rtol=1e-6)


def test_each_thread_follows_its_own_rule(backend: Any) -> None:
    traced = compiled(backend, xg.activation("Heaviside"))
    found: dict[float, list[Any]] = {}

    def run(s: float) -> None:
        with xg.use("scale", {"s": s}):
            found[s] = [traced.gradient() for _ in range(5)]

    with xg.use("triangular"):
        traced.gradient()
        threads = [threading.Thread(target=run, args=(s,)) for s in (2.0, 3.0, 4.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_allclose(traced.gradient(), triangle(X), rtol=1e-6)
    for s in (2.0, 3.0, 4.0):
        np.testing.assert_array_equal(found[s], np.full((5, *X.shape), s))
