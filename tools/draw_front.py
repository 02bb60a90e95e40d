"""Draw the picture of the front page, for light pages and for dark ones.

python tools/draw_front.py

Left: a step and its surrogate gradient, computed in each framework. Right: a network with binary
hidden units, trained in each from the same weights, with this gradient and with the step's own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.command.options import prepare_environment

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from demo.frameworks import FRAMEWORKS, load
from demo.runs import TRUE_DERIVATIVE, Configuration, Run, execute
from demo.task import Task, load_task

FOLDER = Path(__file__).parents[1] / "docs" / "assets"
RULE, EPOCHS = "triangular", 40
TITLES = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
ARRAYS = {"torch": "asarray", "jax": "numpy.asarray", "tensorflow": "constant"}
# Drawn one on the other, each is still seen: a wide band, a line, dots.
LINES: dict[str, dict[str, Any]] = {
    "torch": {"linewidth": 7, "alpha": 0.4},
    "jax": {"linewidth": 2},
    "tensorflow": {"linestyle": "none", "marker": "o", "markersize": 5},
}
DOTS = 3  # TensorFlow's dot stands on each third point
# By theme: text, what is less than text, and a color for each framework.
LIGHT = ("#1b1d22", "#5f646e", ("#e8710a", "#1c64c8", "#14532d"))
DARK = ("#e8eaf0", "#a9b0bb", ("#ff9a4d", "#7db3ff", "#c8f0d4"))


def surrogates(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the step's gradient is at `x` under the rule, by framework."""
    spike = xg.activation("Heaviside", RULE)
    found = {}
    for name in TITLES:
        place, _, function = f"{name}.{ARRAYS[name]}".rpartition(".")
        tensor = getattr(import_module(place), function)
        y, pullback = xg.vjp(spike, tensor(x))
        np.testing.assert_array_equal(np.asarray(y), x > 0)
        found[name] = np.asarray(pullback(tensor(np.ones_like(x)))[0])
    return found


def train(task: Task, rule: str) -> dict[str, Run]:
    by_name = {framework.name: framework for framework in FRAMEWORKS}
    return {
        name: execute(task, name, load(by_name[name]), Configuration("Heaviside", rule))
        for name in TITLES
    }


def draw(x: np.ndarray, gradients: Mapping[str, np.ndarray], runs: list[Any], dark: bool) -> Path:
    import matplotlib
    from matplotlib.figure import Figure

    ink, quiet, colors = DARK if dark else LIGHT
    settings: dict[Any, Any] = {
        "font.size": 12,
        "svg.hashsalt": "multigrad",
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": quiet,
        "xtick.color": quiet,
        "ytick.color": quiet,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(7.8, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot([-2, 0, 0, 2], [0, 0, 1, 1], color=quiet, linewidth=1.6)
        left.text(2, 1.04, "forward: a step", color=quiet, ha="right")
        left.text(-1.95, 0.55, "backward:\none rule")
        left.set(ylim=(-0.06, 1.2), xlabel="input", title="One rule, the same gradient")
        epochs = np.arange(1, EPOCHS + 1)
        for (name, title), color in zip(TITLES.items(), colors, strict=True):
            dots = slice(None, None, DOTS if name == "tensorflow" else None)
            style = {"color": color, **LINES[name]}
            left.plot(x[dots], gradients[name][dots], label=title, **style)
            for run in runs:
                right.plot(epochs[dots], np.array(run[name].accuracies)[dots], **style)
        learned, own = (run["torch"].accuracy for run in runs)
        right.text(EPOCHS, learned - 0.1, f"with the rule: {learned:.2f}", ha="right")
        right.text(EPOCHS, own - 0.1, f"without: {own:.2f}", ha="right")
        right.set(ylim=(0, 1.02), xlabel="epoch", ylabel="test accuracy", title="The same training")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        path = FOLDER / f"front_{'dark' if dark else 'light'}.svg"
        unnamed = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(path, transparent=True, metadata=unnamed)
    return path


def main() -> None:
    prepare_environment()
    x = np.linspace(-2, 2, 61, dtype=np.float32)
    gradients, task = surrogates(x), load_task(EPOCHS, seed=0)
    runs = [train(task, rule) for rule in (RULE, TRUE_DERIVATIVE)]
    for name in TITLES:
        apart = np.abs(gradients[name] - gradients["torch"]).max()
        same = [np.array_equal(run[name].predictions, run["torch"].predictions) for run in runs]
        print(f"{name}: gradients {apart:g} from torch's; the same predictions: {same}")
    for dark in (False, True):
        print(draw(x, gradients, runs, dark))


if __name__ == "__main__":
    main()
