"""What every framework gets in these experiments: data, initial weights, batches and optimizers.

All of it is NumPy, or operators alone, so that nothing random and no framework's own defaults
come between two runs: they differ by rounding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Tensor = Any
Weights = dict[str, Tensor]
Update = Callable[[Weights, Weights, Weights], tuple[Weights, Weights]]
"""`update(weights, gradients, kept)` gives the next weights, and what it keeps anew."""
Optimizer = tuple[Callable[[Weights], Weights], Update]
"""What is kept at the start, from NumPy weights, and the update."""


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images (1437, 64) between 0 and 1, their labels, and 360 to test on."""
    images, labels = load_digits(return_X_y=True)
    scaled, classes = (images / 16).astype(np.float32), labels.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(
        scaled, classes, test_size=0.2, random_state=0, stratify=classes
    )
    return train_x, train_y, test_x, test_y


def draw_layers(generator: np.random.Generator, *sizes: int) -> Weights:
    """Draw `w0, b0, w1, b1, ...` of a dense network: uniform, below 1 / sqrt(fan-in)."""
    weights = {}
    for i, (before, after) in enumerate(pairwise(sizes)):
        bound = before**-0.5
        for name, shape in ((f"w{i}", (before, after)), (f"b{i}", (after,))):
            weights[name] = generator.uniform(-bound, bound, shape).astype(np.float32)
    return weights


def batches(
    generator: np.random.Generator, size: int, *arrays: np.ndarray, whole: bool = True
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield one epoch's batches in the generator's order; `whole` leaves out a smaller last one."""
    order = generator.permutation(len(arrays[0]))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        if len(rows) == size or not whole:
            yield tuple(array[rows] for array in arrays)


def sgd(rate: float) -> Optimizer:
    """Return plain gradient descent, which keeps nothing."""

    def start(weights: Weights) -> Weights:
        return {}

    def update(weights: Weights, gradients: Weights, kept: Weights) -> tuple[Weights, Weights]:
        return {name: weights[name] - rate * gradients[name] for name in weights}, kept

    return start, update


def adam(
    rate: float, faster: Mapping[str, float] | None = None, steps: int | None = None
) -> Optimizer:
    """Return Adam (Kingma and Ba, 2015), which keeps the count of steps and two moments.

    `faster` multiplies the rate of what it names; over `steps`, the rate falls to 0 in a line.
    """
    decays, eps, factors = (0.9, 0.999), 1e-8, faster or {}

    def start(weights: Weights) -> Weights:
        moments = {f"{i} {name}": 0 * weights[name] for i in range(2) for name in weights}
        return {"count": np.float32(0)} | moments

    def update(weights: Weights, gradients: Weights, kept: Weights) -> tuple[Weights, Weights]:
        now, changed = {"count": kept["count"] + 1}, {}
        current = rate * (1 - kept["count"] / steps) if steps else rate
        for name, gradient in gradients.items():
            estimates = []
            for i, power in enumerate((gradient, gradient * gradient)):
                moment = decays[i] * kept[f"{i} {name}"] + (1 - decays[i]) * power
                estimates.append(moment / (1 - decays[i] ** now["count"]))
                now[f"{i} {name}"] = moment
            change = estimates[0] / (estimates[1] ** 0.5 + eps)
            changed[name] = weights[name] - current * factors.get(name, 1.0) * change
        return changed, now

    return start, update


class Trained(NamedTuple):
    weights: Weights
    """The framework's tensors."""
    losses: list[float]
    """Of every step."""
    curve: list[float]
    """What `score` gave after each epoch."""

    def mean_losses(self) -> list[float]:
        return [float(np.mean(part)) for part in np.array_split(self.losses, len(self.curve))]


def train(
    ops: Any,
    loss: Callable[..., Tensor],
    weights: dict[str, np.ndarray],
    optimizer: Optimizer,
    epochs: Iterable[Iterable[tuple[Any, ...]]],
    score: Callable[[Weights], float],
) -> Trained:
    """Run the epochs in one framework: `loss(weights, *batch)` and `score(weights)` see tensors."""
    start, update = optimizer
    step, losses, curve = ops.make_step(loss, update), [], []
    current = {name: ops.tensor(weight) for name, weight in weights.items()}
    kept = {name: ops.tensor(array) for name, array in start(weights).items()}
    for epoch in epochs:
        for batch in epoch:
            current, kept, value = step(current, kept, *map(ops.tensor, batch))
            losses.append(value)
        curve.append(score(current))
    return Trained(current, [float(value) for value in losses], curve)


def train_on_digits(
    ops: Any,
    logits: Callable[[Weights, Tensor], Tensor],
    weights: dict[str, np.ndarray],
    optimizer: Optimizer,
    seed: int,
    *,
    epochs: int,
    watch: Callable[[Weights], object] = lambda weights: None,
) -> Trained:
    """Train a network on DIGITS in batches of 64; the curve is its accuracy on the test images.

    `watch` sees the weights after each epoch.
    """
    images, labels, test_images, test_labels = digits()
    evaluate, seen = ops.compiled(logits), ops.tensor(test_images)

    def loss(weights: Weights, images: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(logits(weights, images), labels)

    def score(weights: Weights) -> float:
        watch(weights)
        return accuracy(ops, evaluate(weights, seen), test_labels)

    order = np.random.default_rng(seed)
    course = (batches(order, 64, images, labels) for _ in range(epochs))
    return train(ops, loss, weights, optimizer, course, score)


def train_side_by_side(
    ops: Any,
    network: Callable[[Tensor, Weights], Tensor],
    weights: dict[str, np.ndarray],
    data: tuple[np.ndarray, ...],
    *,
    epochs: int,
    size: int,
    rate: float,
) -> tuple[Trained, np.ndarray]:
    """Train the networks on the weights' leading axis, with Adam whose rate falls to 0.

    `data` is inputs and classes to train on, then to test on; `network(inputs, weights)` gives
    logits (networks, n, classes). Return what was trained and the answers, (networks, n tested).
    """
    inputs, classes, test_inputs, test_classes = data
    count = len(next(iter(weights.values())))
    tested, seen = np.tile(test_classes, count), ops.tensor(test_inputs)

    def logits(weights: Weights, inputs: Tensor) -> Tensor:
        return ops.reshape(network(inputs, weights), (-1, int(classes.max()) + 1))

    def loss(weights: Weights, inputs: Tensor, classes: Tensor) -> Tensor:
        return ops.cross_entropy(logits(weights, inputs), classes)

    def repeated(generator: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for some, of in batches(generator, size, inputs, classes):
            yield some, np.tile(of, count)

    evaluate, generator = ops.compiled(logits), np.random.default_rng(0)
    courses = (repeated(generator) for _ in range(epochs))
    optimizer = adam(rate, steps=epochs * (len(inputs) // size))
    trained = train(
        ops,
        loss,
        weights,
        optimizer,
        courses,
        lambda current: accuracy(ops, evaluate(current, seen), tested),
    )
    answers = ops.array(evaluate(trained.weights, seen)).argmax(axis=1)
    return trained, answers.reshape(count, -1)


def accuracy(ops: Any, logits: Tensor, labels: np.ndarray) -> float:
    """Return the share of samples whose largest logit is their label's."""
    return float((ops.array(logits).argmax(axis=1) == labels).mean())
