"""Converted classes against themselves in eager torch, forward and backward: ratios.

`python tools/bench converted [NAME ...]`. Both run interleaved, each ratio is one of two
calls right after each other; the median of many is shown, and that of the classes. Freed memory
is kept, as in the other benchmarks: at 4 MB fresh pages would take most of the time. The classes
are some of `tests/idioms`, whose tests convert all of them on every backend.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

import multigrad as xg
from bench.cases import Effort
from bench.harness import keep_memory
from bench.measure import run_race

# By module and class: what follows the tensor among its arguments.
CLASSES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "quantizers.RoundHalfUp", "quantizers.BinarizeF", "quantizers.DoReFa",
            "quantizers.ApproxSign", "quantizers.PowerOfTwo", "quantizers.HardTanhSign",
            "spiking.SuperSpike", "spiking.ActFunAdp", "spiking.Triangle", "spiking.LeakySpike",
            "quantizers.Float16", "gradients.MemoryEfficientSwish",
            "gradients.MishJit", "gradients.GELU", "gradients.ExpSavesItsResult",
            "gradients.SaturatesInPlace", "gradients.Normalized", "gradients.CReLU",
            "indices.SparsemaxFunction", "indices.ArgmaxSTE", "indices.LayerNormByName",
        ),
        (),
    ),
    "quantizers.FunLSQ": (torch.tensor([0.3], requires_grad=True), 0.5, -4, 3),
    "quantizers.PACT": (torch.tensor([0.9], requires_grad=True), 3),
    "quantizers.UniformQuantize": (4,),
    "quantizers.ClampPartial": (-1.0, 0.5),
    "spiking.ATan": (2.0,),
    "spiking.PiecewiseExp": (2.0,),
    "gradients.GradReverse": (0.5,),
    "gradients.ClipGradByNorm": (0.5,),
    "gradients.HardArgmax": (0.5,),
}  # fmt: skip
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


def compare(name: str, size: int) -> float:
    """Return the median ratio of the converted class to the class."""
    module, _, word = name.partition(".")
    cls, others = getattr(import_module(f"tests.idioms.{module}"), word), CLASSES[name]
    x = torch.randn(SIZES[size], generator=torch.Generator().manual_seed(7)).requires_grad_()
    function = xg.from_autograd_function(cls)
    ours, own = (build_step(apply, x, others) for apply in (function, cls.apply))
    assert function.captures.variants, f"{name} runs as it is"
    for given, known in zip(ours(), own(), strict=True):
        torch.testing.assert_close(given.reshape(known.shape), known, rtol=1e-4, atol=1e-4)
    steps = {"converted": ours, "itself": own}
    race = run_race(steps, Effort.of_rounds(ROUNDS[size]), calls=REPETITIONS[size])
    return race.compare("converted", "itself")[1]


def main(names: list[str]) -> None:
    """Print a row for each class, and the median and the worst of each size."""
    keep_memory()
    torch.set_num_threads(1)
    chosen = [name for name in CLASSES if not names or name in names]
    rows = {name: [compare(name, size) for size in SIZES] for name in chosen}
    for name, ratios in sorted(rows.items(), key=lambda row: max(row[1])):
        print(f"{name:30}", *(f"{ratio:8.2f}" for ratio in ratios))
    columns = [*zip(*rows.values(), strict=True)]
    for word, summary in (("median", statistics.median), ("worst", max)):
        print(f"{word:30}", *(f"{summary(column):8.2f}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
