"""Forwards in which dtypes matter, written with four libraries: constants, casts up and down, sums
in a wider dtype.
"""

from __future__ import annotations

from typing import Any


def in_numpy() -> dict[str, Any]:
    import numpy as np

    def constants(x: Any) -> Any:
        return np.exp(x * 0.1) * 3.141592653589793 + 0.7

    def widened(x: Any) -> Any:
        return (np.tanh(x.astype(np.float32) * 0.3) * 1.7).astype(x.dtype)

    def squares(x: Any) -> Any:
        wide = x.astype(np.float32)
        return (x / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + 0.1)).astype(x.dtype)

    def summed(x: Any) -> Any:
        return np.sum(np.abs(x).astype(np.float32), axis=0) * 0.3

    def gaussian(x: Any) -> Any:
        return np.exp(-0.5 * x * x) * 0.3989422804014327

    return locals()


def in_torch() -> dict[str, Any]:
    import torch

    def constants(x: Any) -> Any:
        return torch.exp(x * 0.1) * 3.141592653589793 + 0.7

    def widened(x: Any) -> Any:
        return (torch.tanh(x.float() * 0.3) * 1.7).to(x.dtype)

    def squares(x: Any) -> Any:
        wide = x.float()
        # No norm of torch's own: its kernels would hide a fault.
        return (wide / (torch.mean(wide * wide, dim=-1, keepdim=True) + 0.1)).to(x.dtype)

    def summed(x: Any) -> Any:
        return torch.sum(torch.abs(x).float(), dim=0) * 0.3

    def gaussian(x: Any) -> Any:
        return torch.exp(-0.5 * x * x) * 0.3989422804014327

    return locals()


def in_jax() -> dict[str, Any]:
    import jax.numpy as jnp

    def constants(x: Any) -> Any:
        return jnp.exp(x * 0.1) * 3.141592653589793 + 0.7

    def widened(x: Any) -> Any:
        return (jnp.tanh(x.astype(jnp.float32) * 0.3) * 1.7).astype(x.dtype)

    def squares(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        norm = jnp.sqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 0.1)
        return (wide / norm).astype(x.dtype)

    def summed(x: Any) -> Any:
        return jnp.sum(jnp.abs(x).astype(jnp.float32), axis=0) * 0.3

    def gaussian(x: Any) -> Any:
        return jnp.exp(-0.5 * x * x) * 0.3989422804014327

    return locals()


def in_tensorflow() -> dict[str, Any]:
    import tensorflow as tf

    def constants(x: Any) -> Any:
        return tf.exp(x * 0.1) * 3.141592653589793 + 0.7

    def widened(x: Any) -> Any:
        return tf.cast(tf.tanh(tf.cast(x, tf.float32) * 0.3) * 1.7, x.dtype)

    def squares(x: Any) -> Any:
        wide = tf.cast(x, tf.float32)
        norm = tf.sqrt(tf.reduce_mean(wide * wide, axis=-1, keepdims=True) + 0.1)
        return tf.cast(wide / norm, x.dtype)

    def summed(x: Any) -> Any:
        return tf.reduce_sum(tf.cast(tf.abs(x), tf.float32), axis=0) * 0.3

    def gaussian(x: Any) -> Any:
        return tf.exp(-0.5 * x * x) * 0.3989422804014327

    return locals()


WRITTEN_IN = {"numpy": in_numpy, "torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}
FORWARDS = ("constants", "widened", "squares", "summed", "gaussian")
