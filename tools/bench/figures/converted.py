"""Converted classes against themselves in eager torch, forward and backward: ratios.

`python tools/bench converted [NAME ...]`. Both run interleaved, each ratio is one of two
calls right after each other; the median of many is shown, and that of the classes. Freed memory
is kept, as in the other benchmarks: at 4 MB fresh pages would take most of the time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

import multigrad as xg
from bench.cases import Effort
from bench.harness import keep_memory
from bench.measure import run_race

from .classes_torch import CLASSES

SIZES = {24: (4, 6), 1_000_000: (1000, 1000)}
REPETITIONS = {24: 40, 1_000_000: 1}
ROUNDS = {24: 150, 1_000_000: 25}


def build_step(apply: Callable[..., Any], x: Any, others: tuple[Any, ...]) -> Callable[[], Any]:
    leaves = [x, *(each for each in others if isinstance(each, torch.Tensor))]
    shape = apply(x, *others).shape
    cotangent = torch.randn(shape, generator=torch.Generator().manual_seed(11))

    def step() -> Any:
        return torch.autograd.grad(apply(x, *others), leaves, cotangent)

    return step


def compare(cls: Any, size: int) -> float:
    """Return the median ratio of the converted class to the class."""
    x = torch.randn(SIZES[size], generator=torch.Generator().manual_seed(7)).requires_grad_()
    ours = build_step(xg.from_autograd_function(cls), x, CLASSES[cls])
    own = build_step(cls.apply, x, CLASSES[cls])
    for given, known in zip(ours(), own(), strict=True):
        torch.testing.assert_close(given.reshape(known.shape), known, rtol=1e-4, atol=1e-4)
    steps = {"converted": ours, "itself": own}
    race = run_race(steps, Effort.of_rounds(ROUNDS[size]), calls=REPETITIONS[size])
    return race.compare("converted", "itself")[1]


def main(names: list[str]) -> None:
    """Print a row for each class, and the median and the worst of each size."""
    keep_memory()
    torch.set_num_threads(1)
    chosen = [cls for cls in CLASSES if not names or cls.__name__ in names]
    rows = {cls.__name__: [compare(cls, size) for size in SIZES] for cls in chosen}
    for name, ratios in sorted(rows.items(), key=lambda row: max(row[1])):
        print(f"{name:24}", *(f"{ratio:8.2f}" for ratio in ratios))
    columns = [*zip(*rows.values(), strict=True)]
    for word, summary in (("median", statistics.median), ("worst", max)):
        print(f"{word:24}", *(f"{summary(column):8.2f}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
