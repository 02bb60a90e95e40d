"""Does a heat map depend on the network? Two published checks, on guided backprop and z-plus.

Adebayo et al. (2018, arXiv 1810.03292) set a trained network's layers to random weights, from the
last to the first, and compare the heat maps with those before: guided backprop stays alike. Sixt,
Granz and Landgraf (2020, arXiv 1912.09818) find the same for rules built on z-plus and say why: the
chain of z-plus layers comes close to a matrix of rank one, whatever comes in from above. So the
heat maps of two classes are alike, too. (Where later layers are random, a map that stays is no
evidence about them; whether it is of use for something else is not asked here.)

Here: four convolutions and two dense layers learn DIGITS in PyTorch. A figure is the rank
correlation (Spearman) of the sizes of two heat maps, over the pixels with ink, where an input of
zero leaves z-plus no choice; means over 360 test images, then over 3 seeds.

With the last layer random:

    gradient, last layer           0.280 ± 0.08
    guided backprop, last layer    0.790 ± 0.08
    epsilon plus, last layer       0.750 ± 0.08
    z-plus, last layer             0.995 ± 0.01

Of the image's own class and of the next one, nothing random:

    gradient, next class           0.260 ± 0.08
    guided backprop, next class    0.740 ± 0.08
    epsilon plus, next class       0.720 ± 0.08
    z-plus, next class             0.990 ± 0.01

`python sanity_checks.py [--quick] [--seeds N] [--out FOLDER]`
"""

from contextlib import nullcontext
from copy import deepcopy

import numpy as np
import torch
from course import COLORS, Outcome, Outcomes, conduct
from scipy.stats import spearmanr  # comes with scikit-learn
from task import batches, digits
from torch import nn

import multigrad as xg

EPOCHS, BATCH, RATE = 15, 64, 2e-3
METHODS = {
    "gradient": None,
    "guided backprop": xg.composites.guided_backprop(),
    "epsilon plus": xg.composites.epsilon_plus(),
    "z-plus": xg.composites.excitation_backprop(),
}


def make_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(network: nn.Module, seed: int, epochs: int) -> list[float]:
    """Train the network; return the loss of each step."""
    images, labels, *_ = digits()
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    losses, order = [], np.random.default_rng(seed)
    for _ in range(epochs):
        for some, classes in batches(order, BATCH, images, labels):
            optimizer.zero_grad()
            scores = network(torch.as_tensor(some).reshape(-1, 1, 8, 8))
            loss = nn.functional.cross_entropy(scores, torch.as_tensor(classes))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def heat_maps(network: nn.Module, composite, images: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return what the score of a class sends back to each image, (n, 64)."""
    x = torch.as_tensor(images).reshape(-1, 1, 8, 8).requires_grad_()
    with xg.attach(network, composite) if composite else nullcontext():
        scores = network(x)[torch.arange(len(classes)), torch.as_tensor(classes)]
        (heat,) = torch.autograd.grad(scores.sum(), x)
    return heat.reshape(len(images), -1).numpy()


def alike(maps: np.ndarray, others: np.ndarray, images: np.ndarray) -> float:
    """Return the mean rank correlation of the maps' sizes where there is ink."""
    rows = zip(images > 0, np.abs(maps), np.abs(others), strict=True)
    return float(np.mean([spearmanr(a[ink], b[ink]).statistic for ink, a, b in rows]))


def run(ops, seed: int, quick: bool) -> Outcome:
    torch.manual_seed(seed)
    network = make_network()
    losses = train(network, seed, 3 if quick else EPOCHS)
    *_, images, labels = (each[: 40 if quick else None] for each in digits())
    scores = network(torch.as_tensor(images).reshape(-1, 1, 8, 8))
    print(f"    test accuracy {(scores.argmax(1).numpy() == labels).mean():.3f}")
    first = {
        name: heat_maps(network, composite, images, labels) for name, composite in METHODS.items()
    }
    figures = {}
    for name, composite in METHODS.items():
        others = heat_maps(network, composite, images, (labels + 1) % 10)
        figures[f"{name}, next class"] = alike(first[name], others, images)
    curves, shown = {name: [1.0] for name in METHODS}, deepcopy(first)
    random = deepcopy(network)
    layers = [layer for layer in reversed(random) if hasattr(layer, "reset_parameters")]
    for i, layer in enumerate(layers[:1] if quick else layers):
        layer.reset_parameters()
        for name, composite in METHODS.items():
            maps = heat_maps(random, composite, images, labels)
            curves[name].append(alike(first[name], maps, images))
            if i == 0:
                shown[name + ", last layer random"] = maps
                figures[f"{name}, last layer"] = curves[name][-1]
    maps = {name: each[:1] for name, each in shown.items()}
    return Outcome(figures, {"network": losses}, {"alike": curves}, {"image": images[0]} | maps)


def draw(figure, outcomes: Outcomes) -> None:
    (found,) = outcomes.values()
    places = figure.add_gridspec(2, 2 + len(METHODS))
    axis = figure.add_subplot(places[:, :2])
    for name, color in zip(METHODS, COLORS, strict=False):
        means = np.mean([each.curves["alike"][name] for each in found], axis=0)
        axis.plot(means, "o-", color=color, label=name)
    axis.set(
        xlabel="layers with random weights, from the last",
        ylabel="rank correlation with the trained",
    )
    axis.grid(alpha=0.25)
    axis.legend()
    for i, name in enumerate(METHODS):
        for row, when in enumerate(("", ", last layer random")):
            place = figure.add_subplot(places[row, 2 + i])
            xg.heatmap(found[0].shown[name + when].reshape(8, 8), ax=place, signed=True)
            place.set_title(name if row == 0 else "last layer random", fontsize="small")


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(
        __file__, __doc__, run, draw, arguments=arguments, frameworks=("torch",), size=(12.0, 4.5)
    )


if __name__ == "__main__":
    main()
