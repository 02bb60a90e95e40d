"""What a bridge costs: an activation that runs in another framework, beside the same one in its
tensors' own.

Forward and backward as each framework's users run them: eager in PyTorch, in one `jax.jit`, in one
`tf.function`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from multigrad.rules.bridging import call_activation
from multigrad.rules.in_force.activation import Activation

from .cases import BRIDGES_PART, NATIVE, STEP, Effort
from .contests import Contest
from .harness import Harness, make_values
from .measure import run_race

Tensor = Any
HOSTS = ("torch", "jax", "tensorflow")


def measure_bridges(
    host: str, harness: Harness, guests: Sequence[str], size: int, threads: int, effort: Effort
) -> Contest:
    """Run the host's own activation and one in each guest, interleaved."""
    activation = Activation(STEP.forward, rule=STEP.rule)
    x, grad_out = harness.make_inputs(*make_values(size))
    rivals = {NATIVE: activation, **{guest: partial(run_in, guest, activation) for guest in guests}}
    steps = {name: harness.build_step(rival, x, grad_out) for name, rival in rivals.items()}
    race = run_race(steps, effort)
    return Contest(
        BRIDGES_PART,
        host,
        STEP,
        size=size,
        threads=threads,
        timings={name: race.summarize(name) for name in rivals},
        ratios={guest: race.compare(guest, NATIVE) for guest in guests},
    )


def run_in(guest: str, activation: Activation, x: Tensor) -> Tensor:
    """Return the activation of x, run in a guest with its backward."""
    return call_activation(activation.forward, activation.own_in_force(), x, guest)
