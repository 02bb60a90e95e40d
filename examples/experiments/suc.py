"""FreeGrad's first experiment: a single unit learns, with its own derivative and without.

The unit is `Logistic(w x + b)` with a binary cross entropy. Its input is a vector of 10 bits whose
count of ones is uniform, and the class is whether more than 70 % are ones. *Tied* is the true
derivative, *untied* is `d(Linear)`: the gradient passes the activation as if it were not there.
2,000 vectors, 80 % to train, SGD 0.1, batches of 32, 30 epochs. Settings: arXiv 2509.07236,
experiment 1. FreeGrad 1.0.1 itself gave 0.9965 ± 0.0034 tied and 1.0000 untied over five seeds.

Test accuracy, means over 5 seeds, the same in PyTorch, JAX and TensorFlow:

    tied      0.998 ± 0.005
    untied    0.998 ± 0.005

Untied learns faster (its training loss after 5 epochs is 0.12, 0.34 when tied) and ends no worse.

`python suc.py [--framework torch jax tensorflow] [--quick] [--seeds N] [--out FOLDER]`
FreeGrad's binary unit is in `bnn_step.py`, its experiment on DIGITS is `examples/demo`.
"""

import numpy as np
from course import EVERYWHERE, Outcome, Outcomes, conduct, draw_training
from task import Trained, batches, draw_layers, sgd, train

import multigrad as xg
from multigrad import xp

ONES, EPOCHS, BATCH, RATE = (2000, 10, 0.7), 30, 32, 0.1
RULES = {"tied": None, "untied": "d(Linear)"}


def draw_ones(generator: np.random.Generator, samples: int, bits: int, threshold: float):
    """Draw vectors of bits, their count of ones uniform, and whether that is over the threshold."""
    counts = generator.integers(0, bits + 1, samples)
    ranks = generator.random((samples, bits)).argsort(axis=1).argsort(axis=1)
    x = (ranks < counts[:, None]).astype(np.float32)
    return x, (x.mean(axis=1) > threshold).astype(np.float32)


def binary_cross_entropy(p, y):
    """- y log p - (1 - y) log(1 - p), each logarithm at least -100."""
    yes, no = xp.maximum(xp.log(p), -100.0), xp.maximum(xp.log1p(-p), -100.0)
    return -(y * yes + (1 - y) * no)


def of_cross_entropy(grad_out, p, y):
    """(p - y) / (p (1 - p)), where the division is by 1e-12 at least."""
    return grad_out * (p - y) / xp.maximum(p * (1 - p), 1e-12), None


BCE = xg.function(binary_cross_entropy, of_cross_entropy)


def train_unit(
    ops, unit, error, ones: tuple[int, int, float], seed, *, batch: int, epochs: int, whole=True
) -> Trained:
    """Train `unit(w x + b)` on 80 % of the vectors; `ones` is the words of `draw_ones`."""
    generator = np.random.default_rng(seed)
    x, y = draw_ones(generator, *ones)
    start, cut = draw_layers(generator, ones[1], 1), int(0.8 * ones[0])

    def predict(weights, x):
        return unit(x @ weights["w0"] + weights["b0"])[:, 0]

    def loss(weights, x, y):
        return ops.mean(error(predict(weights, x), y))

    def score(weights):
        found = ops.array(predict(weights, ops.tensor(x[cut:])))
        return float(((found >= 0.5) == y[cut:]).mean())

    order = np.random.default_rng(seed)
    course = (batches(order, batch, x[:cut], y[:cut], whole=whole) for _ in range(epochs))
    return train(ops, loss, start, sgd(RATE), course, score)


def run(ops, seed: int, quick: bool) -> Outcome:
    def learn(rule: str | None) -> Trained:
        unit, epochs = xg.activation("Logistic", rule), 3 if quick else EPOCHS
        return train_unit(ops, unit, BCE, ONES, seed, batch=BATCH, epochs=epochs)

    return Outcome.of({name: learn(rule) for name, rule in RULES.items()})


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(
        __file__, __doc__, run, draw_training, arguments=arguments,
        frameworks=EVERYWHERE, seeds=5,
    )  # fmt: skip


if __name__ == "__main__":
    main()
