"""`use` in asyncio and in copied contexts: a rule belongs to the task that put it in force, and to
those it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import multigrad as xg


def scale(s: float, scope: Any = "all") -> xg.use:
    return xg.use("scale", {"s": s}, scope)


def factor() -> float:
    """Return what the rule in force makes of the gradient 1, on NumPy."""
    return float(xg.apply_to_gradients([np.ones(1)])[0][0])


async def pause(steps: int = 1) -> None:
    for _ in range(steps):
        await asyncio.sleep(0)


def test_task_has_the_rule_that_was_in_force_where_it_was_created() -> None:
    async def found_later() -> float:
        await pause(3)
        return factor()

    async def main() -> list[float]:
        with scale(2.0):
            first = asyncio.create_task(found_later())
        with scale(3.0):
            second = asyncio.create_task(found_later())
            return [factor(), await first, await second]

    assert asyncio.run(main()) == [3.0, 2.0, 3.0]


def test_nested_tasks_inherit_and_give_nothing_back() -> None:
    async def grow(depth: int) -> list[float]:
        with scale(2.0**depth):
            await pause()
            below = await asyncio.create_task(grow(depth + 1)) if depth < 4 else []
            await pause()
            return [factor(), *below]

    async def main() -> list[float]:
        with scale(1.5):
            return [*await asyncio.create_task(grow(0)), factor()]

    assert asyncio.run(main()) == [1.0, 2.0, 4.0, 8.0, 16.0, 1.5]
    assert factor() == 1.0


def test_many_gathered_tasks_with_nested_rules_of_two_scopes_keep_their_own() -> None:
    async def walk(number: int) -> list[tuple[float, float]]:
        steps = random.Random(number)
        found = []
        for _ in range(20):
            outer, inner = steps.uniform(1, 9), steps.uniform(1, 9)
            with scale(outer):
                await pause(steps.randrange(3))
                with scale(inner, "params"):
                    await pause(steps.randrange(3))
                    found.append((factor(), inner))
                    await pause(steps.randrange(3))
                found.append((factor(), outer))
            await pause(steps.randrange(3))
            found.append((factor(), 1.0))
        return found

    async def main() -> list[list[tuple[float, float]]]:
        return await asyncio.gather(*(walk(number) for number in range(12)))

    for found in asyncio.run(main()):
        assert [got for got, _ in found] == pytest.approx([wanted for _, wanted in found])


def test_cancelled_task_and_one_that_times_out_leave_their_rule() -> None:
    left = []

    async def wait_under(s: float) -> None:
        try:
            with scale(s):
                await asyncio.sleep(60)
        finally:
            left.append(factor())

    async def main() -> float:
        with scale(7.0):
            task = asyncio.create_task(wait_under(2.0))
            await pause(2)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):  # in this task itself
                    await wait_under(3.0)
            return factor()

    assert asyncio.run(main()) == 7.0
    assert left == [7.0, 7.0]


def test_to_thread_takes_the_rule_along_and_an_executor_does_not() -> None:
    def double() -> tuple[float, float]:
        before = factor()
        with scale(5.0):
            return before, factor()

    async def main() -> list[Any]:
        with scale(2.0):
            inherited = await asyncio.to_thread(double)
            bare = await asyncio.get_running_loop().run_in_executor(None, double)
            return [inherited, bare, factor()]

    assert asyncio.run(main()) == [(2.0, 5.0), (1.0, 5.0), 2.0]


def test_callback_and_copied_context_run_under_the_rule_of_their_making() -> None:
    async def main() -> tuple[list[float], float]:
        loop, found = asyncio.get_running_loop(), []
        with scale(2.0):
            copied = contextvars.copy_context()
            loop.call_soon(lambda: found.append(factor()))
        with scale(3.0):
            loop.call_soon(lambda: found.append(factor()))
            await pause(2)
            found.append(copied.run(factor))
            task = asyncio.get_running_loop().create_task(_factor_later(), context=copied)
            found.append(await task)
        return found, factor()

    assert asyncio.run(main()) == ([2.0, 3.0, 2.0, 2.0], 1.0)


async def _factor_later() -> float:
    await pause()
    return factor()


def test_rule_inside_an_async_generator_is_left_when_it_ends() -> None:
    async def steps() -> AsyncIterator[float]:
        with scale(2.0):
            yield factor()
            await pause()
            yield factor()

    async def main() -> list[float]:
        found = [got async for got in steps()]
        suspended = steps()
        with scale(3.0):
            found.append(await anext(suspended))  # type: ignore[arg-type]
            await suspended.aclose()  # type: ignore[attr-defined]
            found.append(factor())
        return [*found, factor()]

    assert asyncio.run(main()) == [2.0, 2.0, 2.0, 3.0, 1.0]


def test_suspended_generators_that_end_in_any_order_leave_the_rules_around_them() -> None:
    def hold(s: float) -> Iterator[None]:
        with scale(s):
            yield

    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]):
        held = [hold(float(s)) for s in (2, 3, 5)]
        with scale(7.0):
            for generator in held:
                next(generator)
            assert factor() == 5.0
            for position in order:
                held[position].close()
            assert factor() == 7.0
        assert factor() == 1.0


def test_use_cannot_be_left_on_another_thread() -> None:
    entered = xg.use("scale", {"s": 3.0})
    with ThreadPoolExecutor(1) as pool, entered:
        with pytest.raises(xg.MultigradError, match="left in another task or thread"):
            pool.submit(entered.__exit__, None, None, None).result()
        assert factor() == 3.0
    assert factor() == 1.0
