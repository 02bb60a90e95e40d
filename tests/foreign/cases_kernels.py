"""Inputs of kernels that no word of a row says."""

from __future__ import annotations

import numpy as np

_generator = np.random.default_rng(20)


def _softmax(*shape: int) -> np.ndarray:
    x = np.exp(_generator.standard_normal(shape))
    return (x / x.sum(-1, keepdims=True)).astype(np.float32)


def _unit(*shape: int) -> np.ndarray:
    x = _generator.standard_normal(shape)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


probabilities = _softmax(4, 6)
other_probabilities = _softmax(4, 6)
log_probabilities = np.log(_softmax(4, 6))
other_log_probabilities = np.log(_softmax(4, 6))
labels = np.array([0, 2, 5, 1])
angles = _generator.uniform(0.2, 2.0, (1, 4, 4)).astype(np.float32)
cosines = np.concatenate([np.cos(angles), np.cos(angles)], -1)
sines = np.concatenate([np.sin(angles), np.sin(angles)], -1)
half_cosines, half_sines = np.cos(angles)[0], np.sin(angles)[0]
unit_keys = _unit(1, 4, 2, 8)
gates = np.log(_generator.uniform(0.5, 0.95, (1, 4, 2))).astype(np.float32)
wide_gates = np.log(_generator.uniform(0.5, 0.95, (1, 4, 2, 8))).astype(np.float32)
sections_of_cosines = np.stack([cosines] * 3)
sections_of_sines = np.stack([sines] * 3)
teacher = _generator.standard_normal((4, 8)).astype(np.float32)
teachers_weight = _generator.standard_normal((6, 8)).astype(np.float32)
policy, reference = -_generator.uniform(0.5, 3.0, (2, 2, 3)).astype(np.float32)
advantages = _generator.standard_normal(2).astype(np.float32)
