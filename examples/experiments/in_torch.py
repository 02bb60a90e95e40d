"""What the experiments need of PyTorch. The models themselves are written with operators and rules,
so the same lines run here, in JAX and in TensorFlow: see `in_jax.py` and `in_tensorflow.py`.
"""

from collections.abc import Callable

import numpy as np
import torch
from task import Tensor, Update

mean = torch.mean
reshape = torch.reshape
cross_entropy = torch.nn.functional.cross_entropy


def tensor(array) -> torch.Tensor:
    return torch.as_tensor(array)


def stopped(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def make_step(loss: Callable[..., Tensor], update: Update):
    """Return `step(weights, kept, *batch)`, which gives both anew and the loss."""

    def step(weights, kept, *batch):
        leaves = {name: weight.requires_grad_() for name, weight in weights.items()}
        value = loss(leaves, *batch)
        gradients = torch.autograd.grad(value, list(leaves.values()))
        with torch.no_grad():
            changed = update(weights, dict(zip(leaves, gradients, strict=True)), kept)
        return *changed, value.detach()

    return step


def compiled(function: Callable) -> Callable:
    """Return the function for evaluation: here as it is, without gradients."""
    return torch.no_grad()(function)
