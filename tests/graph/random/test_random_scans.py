"""Random loops over rows, against the same steps one by one: values, gradients, tangents. The
variable MULTIGRAD_PROGRAMS asks for more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.lowering.patterns import without

xp = xg.xp
COUNT = int(os.environ.get("MULTIGRAD_PROGRAMS", "20"))
STEPS, SHAPE = 5, (2, 3)
ROWS = ((STEPS, 2, 3), (STEPS, 1, 3), (STEPS, 3), (STEPS,))
FIXED: tuple[tuple[int, ...], ...] = (SHAPE, (3,), (1, 3), ())
spike = xg.activation("Heaviside", "triangular", {"width": 2.0})


def whole(a: Any) -> Any:
    """A value between -1 and 1 in the shape of the carry, whatever it is made of."""
    return xp.tanh(a) + xp.zeros(SHAPE, dtype="float64")


def gram(a: Any) -> Any:
    """A symmetric matrix with eigenvalues between 1 and 7."""
    return xp.matmul(whole(a), xp.matrix_transpose(whole(a))) + xp.eye(SHAPE[0], dtype="float64")


def by_cond(a: Any) -> Any:
    """What one of two branches gives, of which the one has another loop inside."""
    some = xp.sum(a)
    turned = lambda b: xp.fori_loop(0, 3, lambda i, c: xp.tanh(c * 0.9), b)
    return xp.cond(some > 0.2, lambda b: xp.sin(b) * 0.5, turned, a)


def exponential(a: Any) -> Any:
    return xp.matmul(xp.expm(0.3 * gram(a)), whole(a))


ONE: tuple[Callable[..., Any], ...] = (
    xp.tanh, xp.sin, xp.abs, xp.sigmoid, spike,
    lambda a: xp.exp(-a * a), lambda a: xp.maximum(a, 0.1), lambda a: a * 0.5 + 0.3,
    lambda a: xp.where(a > 0, a, a * 0.2), lambda a: xp.stop_gradient(a) * 0.1,
    lambda a: xp.sum(a) * 0.1, lambda a: xp.mean(a), lambda a: xp.max(a),
    by_cond, lambda a: xp.solve(gram(a), whole(a)), lambda a: xp.matmul(xp.inv(gram(a)), whole(a)),
    lambda a: xp.matmul(xp.cholesky(gram(a)), whole(a)),
    exponential,
)  # fmt: skip
TWO: tuple[Callable[..., Any], ...] = (
    lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, xp.maximum,
    lambda a, b: xp.where(a > b, a, b * 0.5), lambda a, b: a / (1.5 + b * b),
    lambda a, b: xp.matmul(xp.matmul(whole(a), xp.matrix_transpose(whole(b))), whole(a)),
    lambda a, b: xp.cond(
        xp.max(a) > xp.max(b), lambda a, b: a * 0.7 + 0 * b, lambda a, b: a - b, a, b
    ),
)  # fmt: skip
NEXT: tuple[Callable[..., Any], ...] = (
    lambda c, v: xp.tanh(c * 0.7 + v), lambda c, v: c * 0.5 + xp.sin(v),
    lambda c, v: xp.tanh(v) + 0 * c, lambda c, v: c,
)  # fmt: skip


class Program:
    """A step of random ops on what is carried, rows and constants."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        carried, rows, fixed = draw.integers(1, 4), draw.integers(1, 3), draw.integers(0, 3)
        self.plan: list[tuple[Any, ...]] = []
        count = carried + rows + fixed
        for _ in range(draw.integers(3, 10)):
            table, places = (ONE, 1) if draw.random() < 0.5 else (TWO, 2)
            own = (int(draw.integers(count)) for _ in range(places))
            self.plan.append((table[draw.integers(len(table))], *own))
            count += 1
        self.after = [
            (NEXT[draw.integers(len(NEXT))], int(draw.integers(count))) for _ in range(carried)
        ]
        self.given = [int(draw.integers(count)) for _ in range(draw.integers(0, 3))]
        self.reverse = bool(draw.integers(2))
        shapes = [SHAPE] * int(carried)
        shapes += [ROWS[draw.integers(len(ROWS))] for _ in range(rows)]
        shapes += [FIXED[draw.integers(len(FIXED))] for _ in range(fixed)]
        self.arrays = [draw.normal(size=shape) for shape in shapes]
        self.ends = int(carried), int(carried + rows)

    def of(self, scan: Callable[..., Any]) -> Any:
        """Return the function of one number that the program is, by a way to loop."""

        def run(*args: Any) -> Any:
            carry, rows, fixed = (
                args[: self.ends[0]], args[slice(*self.ends)], args[self.ends[1] :],
            )  # fmt: skip

            def step(carry: Any, row: Any) -> Any:
                values = [*carry, *row, *fixed]
                for op, *places in self.plan:
                    values.append(op(*(values[i] for i in places)))
                after = zip(carry, self.after, strict=True)
                return (
                    tuple(op(c, values[i]) for c, (op, i) in after),
                    tuple(values[i] for i in self.given),
                )

            carry, given = scan(step, tuple(carry), tuple(rows), reverse=self.reverse)
            total = 0.0
            for i, each in enumerate((*carry, *given)):
                total = total + xp.sum(each * xp.cos(each * (i + 1.0)))
            return total

        return xg.function(run, native=False, prove=False)


def one_by_one(f: Any, carry: Any, rows: Any, *, reverse: bool) -> Any:
    given = []
    for i in range(STEPS)[:: -1 if reverse else 1]:
        carry, y = f(carry, tuple(x[i] for x in rows))
        given.append(y)
    given = given[::-1] if reverse else given
    return carry, tuple(xp.stack(column) for column in zip(*given, strict=True))


@pytest.mark.backends("numpy", "torch")
def test_random_loops_are_their_steps_one_by_one(backend: Any) -> None:
    count = COUNT if backend.name == "numpy" else COUNT // 4
    for seed in range(count):
        program = Program(seed)
        found = {}
        for name, scan in (("scan", xp.scan), ("steps", one_by_one)):
            y, pull = xg.vjp(program.of(scan), *map(backend.array, program.arrays))
            found[name] = [y, *pull(backend.array(np.ones(())))]
        for ours, own in zip(found["scan"], found["steps"], strict=True):
            assert (ours is None) == (own is None), seed
            if ours is not None and own is not None:
                a, b = backend.numpy(ours), backend.numpy(own)
                assert np.abs(a - b).max() <= 1e-11 * max(1.0, np.abs(b).max()), seed


def test_random_loops_are_pushed_by_what_is_the_transpose_of_their_gradient() -> None:
    for seed in range(COUNT):
        program = Program(seed)
        if exponential in {op for op, *_ in program.plan}:  # which has no forward mode
            continue
        f, inputs = program.of(xp.scan), tuple(program.arrays)
        moves = tuple(np.cos(np.arange(a.size)).reshape(a.shape) for a in inputs)
        y, pull = xg.vjp(f, *inputs)
        _, tangent = xg.jvp(f, inputs, moves)
        gradients = pull(np.ones_like(y))
        terms = [g * m for g, m in zip(gradients, moves, strict=True) if g is not None]
        size = max(1.0, sum(np.abs(each).sum() for each in terms))
        assert abs(tangent - sum(each.sum() for each in terms)) <= 1e-13 * size, seed


@pytest.mark.backends("torch")
def test_random_loops_whose_turns_write_into_the_stack_give_the_same_bits(backend: Any) -> None:
    def bits(program: Program, *off: str) -> list[bytes | None]:
        with without(*off):
            f = program.of(xp.scan)
            y, pull = xg.vjp(f, *map(backend.array, program.arrays))
            found = [y, f(*map(backend.array, program.arrays)), *pull(backend.array(np.ones(())))]
        return [None if x is None else backend.numpy(x).tobytes() for x in found]

    for seed in range(COUNT // 4):
        assert bits(Program(seed)) == bits(Program(seed), "torch.turns"), seed
