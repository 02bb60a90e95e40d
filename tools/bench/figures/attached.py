"""Attached models against the same models written with `xg.Activation`, and detached ones against
those that nothing was ever attached to: forward and backward in torch, ratios.

`python tools/bench attached [--quick]`. All run interleaved, each ratio is one of two calls
right after each other; the quartiles of many are shown.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import multigrad as xg
from bench.cases import Effort
from bench.harness import keep_memory
from bench.measure import run_race

RULE = "rectangular"
QUICK = Effort(seconds=4.0, fewest=20, most=400, block=0.01)
FULL = Effort(seconds=20.0, fewest=40, most=4000, block=0.02)


class Residual(nn.Module):
    """A basic block of a ResNet."""

    def __init__(self, activation: Callable[[], Any], width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = activation()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = activation()

    def forward(self, x: Any) -> Any:
        y = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(y)) + x)


class Resnet(nn.Module):
    """Eight such blocks, the depth of a ResNet-18."""

    def __init__(self, activation: Callable[[], Any]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(activation, 32) for _ in range(8)))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def make_mlp(activation: Callable[[], Any]) -> nn.Module:
    """Return four linear layers with activations between."""
    widths = (256, 512, 512, 512, 10)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


MODELS: Mapping[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "mlp": (make_mlp, (64, 256)),
    "resnet": (Resnet, (4, 3, 16, 16)),
}
SELECTORS: Mapping[str, Any] = {"layers": nn.ReLU, "operation": "relu"}


def written() -> Any:
    return xg.Activation("ReLU", RULE)


def build(make: Callable[..., Any], activation: Callable[[], Any]) -> Any:
    """Return a model with the weights that all have."""
    torch.manual_seed(3)
    return make(activation)


def build_step(model: Any, shape: tuple[int, ...], compiled: bool) -> Callable[[], Any]:
    """Return a call of forward and backward."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    run = torch.compile(model) if compiled else model

    def step() -> None:
        run(x).square().sum().backward()

    return step


def measure(name: str, compiled: bool, effort: Effort) -> None:
    """Print the ratios for one model."""
    make, shape = MODELS[name]
    models = {"written": build(make, written), "plain": build(make, nn.ReLU)}
    models |= {each: build(make, nn.ReLU) for each in (*SELECTORS, "detached")}
    for each, selector in SELECTORS.items():
        xg.attach(models[each], {selector: RULE})
    step = build_step(models["detached"], shape, compiled)
    with xg.attach(models["detached"], {"relu": RULE}):
        step()
    steps = {each: build_step(model, shape, compiled) for each, model in models.items()}
    steps["detached"] = step
    for each in steps.values():
        each()
    race = run_race(steps, effort)
    pairs = [*((each, "written") for each in SELECTORS), ("detached", "plain")]
    for each, other in pairs:
        low, middle, high = race.compare(each, other)
        how = "compiled" if compiled else "eager"
        time = race.summarize(other).median
        label = f"{name} {how}: {each} / {other}"
        print(f"{label:42} {middle:6.3f}  ({low:.3f} ... {high:.3f}; {time:9.1f} us)")


def main(words: list[str]) -> None:
    """Print a row for each model, eager and compiled."""
    keep_memory()
    torch.set_num_threads(1)
    for compiled in (False,) if "--eager" in words else (False, True):
        for name in MODELS:
            torch.compiler.reset()
            measure(name, compiled, QUICK if "--quick" in words else FULL)


if __name__ == "__main__":
    main(sys.argv[1:])
