"""What multigrad adds around the kernels: fixed costs, and whether they grow with use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import multigrad as xg

from .cases import HAND_WRITTEN, OURS, STEP, Effort
from .harness import Harness, make_values
from .measure import Quartiles, find_quartiles, run_race

SIZE = 1_000
CALLS = 100
MANY_RULES, MANY_LEVELS, MANY_VALUES = 10_000, 100, 1_000
FLAT, NO_RULE, GUARD, FIRST_USE, FIRST_TRACE = 1.05, 1.1, 200.0, 5.0, 2.0
LSTM_STEPS, LSTM_HIDDEN = 16, 256


@dataclass(frozen=True, slots=True)
class Overhead:
    """One figure beside its target; the quartiles are those of the rounds."""

    name: str
    backend: str
    value: float
    first_quartile: float
    third_quartile: float
    unit: str
    target: float
    what: str

    @property
    def is_met(self) -> bool:
        return self.value <= self.target


Measurement = Callable[[str, Harness, Effort], Overhead]


def plan(backends: Sequence[str]) -> list[tuple[str, Measurement]]:
    wanted: list[tuple[str, Measurement]] = []
    if "torch" in backends:
        wanted.append(("torch", measure_no_rule))
    if "tensorflow" in backends:
        wanted.append(("tensorflow", measure_guard))
    if "jax" in backends:
        wanted.append(("jax", measure_first_trace))
    eager = [name for name in ("torch", "numpy") if name in backends]
    wanted += [(name, measure_first_use) for name in eager]
    growing = (measure_many_rules, measure_many_levels, measure_many_values)
    wanted += [(name, measurement) for name in eager[:1] for measurement in growing]
    return wanted


def overhead(
    name: str, backend: str, quartiles: Quartiles, target: tuple[str, float], what: str
) -> Overhead:
    low, middle, high = quartiles
    quarters = {"first_quartile": low, "third_quartile": high}
    unit, bound = target
    return Overhead(name, backend, middle, unit=unit, target=bound, what=what, **quarters)


def measure_no_rule(backend: str, harness: Harness, effort: Effort) -> Overhead:
    """Compare an activation that no rule acts on with the framework's own module."""
    import torch

    x, grad_out = harness.make_inputs(*make_values(SIZE))
    contenders = {
        "ours": harness.build_step(xg.Activation("ReLU"), x, grad_out),
        "native": harness.build_step(torch.nn.ReLU(), x, grad_out),
    }
    ratio = run_race(contenders, effort).compare("ours", "native")
    what = 'xg.Activation("ReLU") against torch.nn.ReLU, 1e3'
    return overhead("no rule", backend, ratio, ("times", NO_RULE), what)


def measure_guard(backend: str, harness: Harness, effort: Effort) -> Overhead:
    """Subtract a hand-written function's time from ours where hardly any work is done."""
    x, grad_out = harness.make_inputs(*make_values(SIZE))
    with ExitStack() as stack:
        harness.enter_rule(STEP, stack)
        rivals = harness.list_rivals(STEP)
        steps = {
            name: harness.build_step(rivals[name], x, grad_out) for name in (OURS, HAND_WRITTEN)
        }
        quartiles = run_race(steps, effort).subtract(OURS, HAND_WRITTEN)
    what = f"{STEP.label} in a tf.function, ours minus hand-written, 1e3"
    return overhead("guard", backend, quartiles, ("us", GUARD), what)


def measure_first_use(backend: str, harness: Harness, effort: Effort) -> Overhead:
    """Time the first forward and backward of rules that were never used before."""
    x, grad_out = harness.make_inputs(*make_values(SIZE))
    figures = []
    for number in range(effort.fewest + 1):
        rule = write_rule(1.0 + number)
        start = time.perf_counter()
        rival = (
            xg.lower(rule, "numpy", forward="Heaviside").vjp
            if backend == "numpy"
            else xg.activation("Heaviside", rule=rule)
        )
        harness.build_step(rival, x, grad_out)()
        figures.append((time.perf_counter() - start) * 1e3)
    quartiles = find_quartiles(figures[1:])  # the first one also imported
    what = "a new rule of 10 ops, capture to first gradient"
    return overhead("first use", backend, quartiles, ("ms", FIRST_USE), what)


def measure_first_trace(backend: str, harness: Harness, effort: Effort) -> Overhead:
    """Compare the first trace of a gradient through a converted LSTM with that of the original."""
    import jax
    from jax import numpy as jnp

    width = 4 * LSTM_HIDDEN
    shapes = ((LSTM_STEPS, 4, 32), (4, LSTM_HIDDEN), (4, LSTM_HIDDEN), (32, width))
    given = [jnp.full(shape, 0.1) for shape in (*shapes, (LSTM_HIDDEN, width), (width,))]

    def trace(convert: Callable[..., Any]) -> Callable[[], Any]:
        def step() -> Any:
            function = convert(write_lstm())  # nothing has been kept for it
            loss = jax.grad(lambda *args: function(*args).sum(), tuple(range(len(given))))
            return jax.make_jaxpr(loss)(*given)

        return step

    contenders = {
        "ours": trace(partial(xg.function, native=False)),
        "native": trace(lambda function: function),
    }
    ratio = run_race(contenders, effort).compare("ours", "native")
    what = f"make_jaxpr of the gradient of an LSTM of {LSTM_STEPS} steps, against the original's"
    return overhead("first trace", backend, ratio, ("times", FIRST_TRACE), what)


def write_lstm() -> Callable[..., Any]:
    """Return an unrolled LSTM that is a function of its own."""
    import jax
    from jax import numpy as jnp

    def lstm(x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> Any:
        for t in range(LSTM_STEPS):
            i, f, g, o = jnp.split(x[t] @ w + h @ u + b, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h

    return lstm


def write_rule(slope: float) -> Callable[..., Any]:
    """Return a rule of ten ops that no other rule equals."""

    def ten_ops(ctx: Any, grad_out: Any, tin: Any) -> Any:
        distance = abs(tin)
        steep = distance * slope + 1.0
        near = 1.0 / (steep * steep)
        far = xg.xp.exp(-distance)
        return grad_out * xg.xp.tanh(near + far)

    return ten_ops


def build_call(backend: str, harness: Harness) -> Callable[[], Any]:
    x, grad_out = harness.make_inputs(*make_values(SIZE))
    activation = xg.activation(STEP.forward)
    if backend == "numpy":
        return partial(activation, x)
    return harness.build_step(activation, x, grad_out)


def measure_many_rules(backend: str, harness: Harness, effort: Effort) -> Overhead:
    """Enter a rule and use it while ten thousand others are registered."""
    call = build_call(backend, harness)

    def use_once() -> None:
        with xg.use(STEP.rule):
            call()

    # Ten thousand registrations take a while, so that few rounds must do.
    fewer = replace(effort, most=effort.fewest)
    contenders = {"few": use_once, "many": use_once}
    race = run_race(contenders, fewer, {"many": many_rules}, calls=CALLS)
    what = f"cost per call with {MANY_RULES:,} more rules registered"
    return overhead("many rules", backend, race.compare("many", "few"), ("times", FLAT), what)


@contextmanager
def many_rules() -> Iterator[None]:
    with ExitStack() as stack:
        for number in range(MANY_RULES):
            name = f"bench rule {number}"
            xg.register(name)(write_rule(1.0))
            stack.callback(xg.unregister, name)
        yield


def measure_many_levels(backend: str, harness: Harness, effort: Effort) -> Overhead:
    """Use a rule inside of a hundred others."""
    call = build_call(backend, harness)

    @contextmanager
    def nest(levels: int) -> Iterator[None]:
        with ExitStack() as stack:
            for _ in range(levels - 1):
                stack.enter_context(xg.use("d(Linear)"))
            stack.enter_context(xg.use(STEP.rule))
            yield

    surroundings = {"few": partial(nest, 1), "many": partial(nest, MANY_LEVELS)}
    race = run_race({"few": call, "many": call}, effort, surroundings, calls=CALLS)
    what = f"cost per call inside of {MANY_LEVELS} nested xg.use"
    return overhead("nested use", backend, race.compare("many", "few"), ("times", FLAT), what)


def measure_many_values(backend: str, harness: Harness, effort: Effort) -> Overhead:
    """Enter a rule with another width at every call."""
    call = build_call(backend, harness)
    widths = cycle([1.0 + number / MANY_VALUES for number in range(MANY_VALUES)])

    def use(widths: Iterator[float]) -> None:
        with xg.use(STEP.rule, params={"width": next(widths)}):
            call()

    contenders = {"few": partial(use, cycle([1.0])), "many": partial(use, widths)}
    race = run_race(contenders, effort, calls=CALLS)
    what = f"cost per call over {MANY_VALUES:,} values of width"
    return overhead("many values", backend, race.compare("many", "few"), ("times", FLAT), what)
