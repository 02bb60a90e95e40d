"""What these examples share: DIGITS in batches, the first weights, and the comparison."""

import numpy as np
from sklearn.datasets import load_digits

STEPS, BATCH, RATE = 60, 64, 0.5
SHAPES = ((64, 64), (64, 32), (32, 10))
SAME = 1e-5  # what the order of sums makes of 60 steps; a rule that acted otherwise makes far more


def load_batches():
    """Return (images, labels) for each step."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    steps = [np.take(order, range(i * BATCH, (i + 1) * BATCH), mode="wrap") for i in range(STEPS)]
    return [(images[chosen], labels[chosen].astype(np.int32)) for chosen in steps]


def draw_weights():
    """Return the first weights, the same in each process."""
    normal = np.random.default_rng(1).standard_normal
    return [(normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in SHAPES]


def compare(title, one, several):
    """Print how far (losses, weights) are apart, and return whether that is rounding alone."""
    losses, weights = (
        np.max([np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in zip(x, y, strict=True)])
        for x, y in zip(one, several, strict=True)
    )
    print(f"{title}: loss {several[0][0]:.4f} to {several[0][-1]:.4f};", end=" ")
    print(f"largest difference to one device: losses {losses:.1e}, weights {weights:.1e}")
    return bool(losses < SAME and weights < SAME)
