"""`use`: which rule is in force, for how long, on which thread and in which task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..support.threads import on_threads

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.0, -0.25, 0.25, 1.0], np.float32)
SLOPE = np.ones_like(X)  # of the activation Linear, without a rule
differentiating = pytest.mark.backends("torch", "jax", "tensorflow")


def gradient(backend: Any, f: Callable[[Tensor], Tensor]) -> Array:
    return backend.vjp(f, X, np.ones_like(X))[1]


def scale(s: float) -> xg.use:
    return xg.use("scale", {"s": s})


def factors() -> float:
    """Return what the rule in force makes of the gradient 1, on NumPy."""
    _, pull = xg.vjp(xg.activation("Linear"), np.ones(1))
    return float(pull(np.ones(1))[0][0])


def test_the_innermost_use_is_in_force_and_a_layers_own_rule_before_it(backend: Any) -> None:
    act, own = xg.activation("Linear"), xg.activation("Linear", "scale", {"s": 4.0})
    for s in (2.0, 3.0):
        with scale(s):
            np.testing.assert_array_equal(gradient(backend, act), s * SLOPE)
            with scale(5.0):
                np.testing.assert_array_equal(gradient(backend, act), 5 * SLOPE)
                np.testing.assert_array_equal(gradient(backend, own), 4 * SLOPE)
            np.testing.assert_array_equal(gradient(backend, act), s * SLOPE)
    np.testing.assert_array_equal(gradient(backend, act), SLOPE)


def test_plain_function_and_a_rule_object_can_be_put_in_force(backend: Any) -> None:
    act = xg.activation("Linear")

    def shifted(ctx: Any, grad_out: Tensor, tin: Tensor, by: float = 1.0) -> Tensor:
        return grad_out + by * tin

    with xg.use(shifted, {"by": 2.0}):
        np.testing.assert_array_equal(gradient(backend, act), SLOPE + 2 * X)
    with xg.use(xg.get("scale").with_params(s=3.0)):
        np.testing.assert_array_equal(gradient(backend, act), 3 * SLOPE)
    with xg.use(xg.compose("scale", shifted), {"s": 2.0, "by": 1.0}):
        np.testing.assert_array_equal(gradient(backend, act), 2 * SLOPE + X)


@differentiating
def test_rule_active_at_forward_is_used_even_if_backward_runs_later(backend: Any) -> None:
    act = xg.activation("Linear")

    def three(x: Tensor) -> Tensor:
        y = act(x)
        with scale(2.0):
            z = act(x)
            with scale(5.0):
                return y + z * 10.0 + act(x) * 100.0

    with scale(3.0):
        np.testing.assert_array_equal(gradient(backend, three), 523 * SLOPE)


@differentiating
def test_decorated_function_runs_under_its_rule_each_time(backend: Any) -> None:
    act = xg.activation("Linear")

    @scale(2.0)
    def doubled(x: Tensor, times: int = 1) -> Tensor:
        """Say what it does."""
        return doubled(act(x), times - 1) if times else x

    assert (doubled.__name__, doubled.__doc__) == ("doubled", "Say what it does.")
    with scale(3.0):
        np.testing.assert_array_equal(gradient(backend, lambda x: doubled(x, 3)), 8 * SLOPE)
        np.testing.assert_array_equal(gradient(backend, act), 3 * SLOPE)


def test_exception_restores_what_was_in_force() -> None:
    with scale(2.0):
        with pytest.raises(ZeroDivisionError), scale(3.0):
            1 / 0  # noqa: B018
        assert factors() == 2.0
        with pytest.raises(xg.RuleError), xg.use("triangluar"):
            pass
        assert factors() == 2.0
    assert factors() == 1.0


def test_use_object_is_entered_again_and_within_itself() -> None:
    twice = scale(2.0)
    for _ in range(2):
        with twice, scale(3.0):
            with twice:
                assert factors() == 2.0
            assert factors() == 3.0
        assert factors() == 1.0


def test_name_is_looked_up_at_each_entry() -> None:
    later = xg.use("test of a name")
    with pytest.raises(xg.RuleError, match="test of a name"), later:
        pass
    for s in (2.0, 3.0):
        xg.register("test of a name", override=True)(
            lambda ctx, grad_out, tin, s=s: grad_out * float(s)  # type: ignore[misc]
        )
        with later:
            assert factors() == s


def test_threads_begin_without_a_rule_and_keep_their_own() -> None:
    found: dict[float, float] = {}
    barrier = threading.Barrier(3)

    def run(s: float) -> None:
        found[-s] = factors()
        with scale(s):
            barrier.wait()
            found[s] = factors()
            barrier.wait()

    with scale(7.0):
        on_threads(run, 2.0, 3.0, 5.0)
        assert factors() == 7.0
    assert found == {2.0: 2.0, 3.0: 3.0, 5.0: 5.0, -2.0: 1.0, -3.0: 1.0, -5.0: 1.0}


def test_use_object_shared_by_threads_and_tasks_is_entered_by_each() -> None:
    shared = scale(2.0)
    order = threading.Barrier(2)
    found = []

    def run(first: bool) -> None:
        if not first:
            order.wait()
        with shared:
            if first:
                order.wait()
            found.append(factors())
            order.wait()
        found.append(factors())

    on_threads(run, True, False)
    assert sorted(found) == [1.0, 1.0, 2.0, 2.0]

    async def task(steps: int) -> float:
        with shared:
            for _ in range(steps):
                await asyncio.sleep(0)
            return factors()

    async def both() -> list[float]:
        return await asyncio.gather(task(1), task(3), task(2))

    assert asyncio.run(both()) == [2.0, 2.0, 2.0]


def test_decorated_coroutine_runs_under_its_rule() -> None:
    @scale(2.0)
    async def task() -> float:
        await asyncio.sleep(0)
        return factors()

    async def gather() -> list[float]:
        return [*await asyncio.gather(task(), task()), factors()]

    assert asyncio.run(gather()) == [2.0, 2.0, 1.0]


def test_a_use_of_none_needs_a_rule() -> None:
    with pytest.raises(xg.RuleError, match="needs a rule"), xg.use(None):  # type: ignore[arg-type]
        pass
    assert factors() == 1.0


@pytest.mark.backends("torch")
def test_param_that_waits_for_a_gradient_is_refused(backend: Any) -> None:
    import torch

    width = torch.tensor(1.0, requires_grad=True)
    for given in ({"params": {"width": width}}, {"params": {"width": torch.nn.Parameter(width)}}):
        with pytest.raises(xg.RuleError, match=r"width.*detach"), xg.use("triangular", **given):
            pass
    with xg.use("triangular", {"width": width.detach()}):
        assert float(xg.activation("Heaviside")(torch.tensor(0.5))) == 1.0


def test_scalar_tensors_are_params(backend: Any) -> None:
    act = xg.activation("Heaviside")
    for width in (backend.array(np.array(2.0, np.float32)), np.float64(2.0), np.array(2.0), 2):
        with xg.use("triangular", {"width": width}):
            np.testing.assert_allclose(gradient(backend, act), 1 - np.abs(X) / 2, rtol=1e-6)
    with pytest.raises(TypeError, match=r"one number|scalar"):
        xg.use("triangular", {"width": backend.array(X)}).__enter__()


def test_a_new_number_at_each_use_is_checked_and_acts() -> None:
    act, x = xg.activation("Heaviside"), np.array([0.25])
    for width in (1.0, 2.0, 0.5, 2.0):
        with xg.use("triangular", {"width": width}):
            _, pull = xg.vjp(act, x)
        assert pull(np.ones(1))[0] == [1.0 - 0.25 / width]
        with pytest.raises(xg.errors.RuleValueError, match=r"is >= 0, got -1\.0"):
            xg.use("triangular", {"width": -1.0}).__enter__()


def test_zeros_of_both_signs_are_two_numbers() -> None:
    @xg.register("over_number")
    def over_number(ctx: object, grad_out: Any, tin: Any, number: float = 1.0) -> Any:
        return grad_out / number

    act, x = xg.activation("Heaviside"), np.ones(1)
    for number, found in ((0.0, np.inf), (-0.0, -np.inf), (0.0, np.inf), (2.0, 0.5)):
        with np.errstate(divide="ignore"), xg.use("over_number", {"number": number}):
            _, pull = xg.vjp(act, x)
            assert pull(np.ones(1))[0] == [found]
