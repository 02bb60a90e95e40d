"""`use`: which rule is in force where, and for how long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.trace.moving_numbers import Noted

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.0, -0.25, 0.25, 1.0], np.float32)
SLOPE = np.ones_like(X)  # of the activation Linear, without a rule
differentiating = pytest.mark.backends("torch", "jax", "tensorflow")


def gradient(backend: Any, f: Callable[[Tensor], Tensor]) -> Array:
    return backend.vjp(f, X, np.ones_like(X))[1]


def scale(s: float, scope: Any = "all") -> xg.use:
    return xg.use("scale", {"s": s}, scope)


def factors() -> float:
    """Return what the rule in force makes of the gradient 1, on NumPy."""
    return float(xg.apply_to_gradients([np.ones(1)])[0][0])


@differentiating
def test_innermost_use_whose_scope_covers_a_place_wins_there(backend: Any) -> None:
    act = xg.activation("Linear")

    def found() -> tuple[float, float]:
        grads = xg.apply_to_gradients({"w": backend.array(SLOPE)})
        return gradient(backend, act)[0], backend.numpy(grads["w"])[0]

    with scale(2.0):
        assert found() == (2.0, 2.0)
        with scale(3.0, "params"):
            assert found() == (2.0, 3.0)
            with scale(5.0, "activations"):
                assert found() == (5.0, 3.0)
                with scale(7.0, ("activations", "params")):
                    assert found() == (7.0, 7.0)
                assert found() == (5.0, 3.0)
            with scale(11.0, ["all"]):
                assert found() == (11.0, 11.0)
            assert found() == (2.0, 3.0)
    assert found() == (1.0, 1.0)


@differentiating
def test_rule_of_a_layer_wins_over_every_use(backend: Any) -> None:
    own = xg.activation("Linear", rule="scale", params={"s": 4.0})
    for scope in ("all", "activations", "params"):
        with scale(2.0, scope):
            np.testing.assert_array_equal(gradient(backend, own), 4 * SLOPE)


def test_generator_function_cannot_be_decorated_and_has_a_use_of_its_own() -> None:
    with pytest.raises(TypeError, match="inside it"):
        scale(3.0)(suspended)
    assert list(between()) == [2.0, 2.0]
    assert factors() == 1.0


def suspended() -> Iterator[float]:
    with scale(2.0):
        yield factors()
        yield factors()


def delegating() -> Iterator[float]:
    with (
        suppress(ValueError),
        scale(2.0),
    ):
        yield from [1.0, 2.0]


async def awaited() -> AsyncIterator[float]:
    with scale(2.0):
        await asyncio.sleep(0)
        yield factors()


def between() -> Iterator[float]:
    for _ in range(2):
        with scale(2.0):
            later = (factors() for _ in range(1))
            factor = next(later)
        yield factor


async def within_task() -> list[float]:
    return [factors() async for _ in awaited()]


SUSPENDED = {
    "a yield": lambda: [factors() for _ in suspended()],
    "a delegation": lambda: [factors() for _ in delegating()],
    "an asynchronous one": lambda: asyncio.run(within_task()),
}


@pytest.mark.parametrize("iterate", SUSPENDED.values(), ids=SUSPENDED)
def test_a_generator_that_gives_its_rule_to_its_caller_is_named(
    iterate: Callable[[], list[float]],
) -> None:
    with pytest.warns(UserWarning, match="yields within use.'scale'.* is in force for the") as said:
        assert set(iterate()) == {2.0}
    assert {each.filename for each in said} == {__file__}
    assert factors() == 1.0


@contextmanager
def managed() -> Iterator[None]:
    with scale(2.0):
        yield


@asynccontextmanager
async def managed_async() -> AsyncIterator[None]:
    with scale(2.0):
        yield


@pytest.fixture
def ruled() -> Iterator[None]:
    with scale(2.0):
        yield


@pytest.mark.filterwarnings("error")
def test_context_managers_and_fixtures_that_yield_within_a_use_are_for_their_callers(
    ruled: None,
) -> None:
    async def within() -> float:
        async with managed_async():
            return factors()

    assert factors() == 2.0  # by the fixture
    with scale(3.0), managed():
        assert factors() == 2.0
    assert asyncio.run(within()) == 2.0
    assert [(each, factors()) for each in between()] == [(2.0, 2.0), (2.0, 2.0)]


@pytest.mark.filterwarnings("ignore:generator")
def test_a_generator_that_is_closed_late_ends_its_own_use_alone() -> None:
    steps = suspended()
    next(steps)
    with scale(3.0):
        steps.close()
        assert factors() == 3.0
    assert factors() == 1.0


@pytest.mark.needs("torch")
def test_cost_of_a_call_is_flat_in_the_depth_of_nested_use() -> None:
    import torch

    act, x = xg.activation("Linear"), torch.ones(1, requires_grad=True)

    def fastest() -> float:
        times = []
        for _ in range(50):
            start = time.perf_counter()
            for _ in range(20):
                with scale(2.0):
                    act(x)
            times.append(time.perf_counter() - start)
        return min(times)

    shallow = fastest()
    with ExitStack() as stack:
        for s in range(100):
            stack.enter_context(scale(float(s)))
        deep = fastest()
    assert deep < 3 * shallow


def test_numbers_reach_their_params_in_any_order_also_where_names_have_changed() -> None:
    for turn in range(2):

        @xg.register("of two numbers", override=True)
        def of_two(ctx: object, grad_out: Any, tin: Any, a: float = 1.0, b: float = 2.0) -> Any:
            return grad_out * a / b

        try:
            for a, b in ((0.25, 0.5), (0.75, 0.125), (0.25, 0.5)):
                for params, values in (
                    ({"b": b, "a": a}, (a, b)),
                    ({"a": a, "b": b}, (a, b)),
                    ({"b": b}, (1.0, b)),
                    ({"b": b, "a": 2}, (2.0, b)),
                ):
                    with xg.use("of two numbers", params):
                        in_force = xg.context.current().activations
                    assert in_force is not None
                    assert in_force.values == values, turn
        finally:
            xg.unregister("of two numbers")


def test_numbers_act_in_a_region_that_runs_again_and_after_it() -> None:
    region = Noted()
    region.names["a name that changed"] = None, None
    with region.again():
        for width in (0.5, 0.625):
            assert xg.context.apply_now("triangular", {"width": width}).values == (width,)
    for width in (0.5, 0.75):
        assert xg.context.apply_now("triangular", {"width": width}).values == (width,)
