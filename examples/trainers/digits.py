"""The data of these examples: scikit-learn's DIGITS, 8 x 8 pixels, 0 to 1."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def as_arrays():
    """Return (images, labels) to train on, and to test on."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    split = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return (split[0], split[2]), (split[1], split[3])


def as_tensors(torch):
    """Return the same as tensors of torch."""
    return [tuple(torch.from_numpy(array) for array in pair) for pair in as_arrays()]
