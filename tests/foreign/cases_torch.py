"""Objects and arguments of torch packages that a factory makes."""

from __future__ import annotations

import numpy as np
import torch

LEVELS = np.linspace(-1.0, 1.0, 5, dtype=np.float32)
SHAPE_3 = torch.Size((3,))
SYMMETRIC = np.diag(np.arange(1.0, 7.0, dtype=np.float32)) + 0.1
TRIANGULAR = np.tril(np.full((4, 4), 0.3, np.float32)) + np.eye(4, dtype=np.float32)
NEGATIVE = np.full((4, 4), -0.1, np.float32) - np.eye(4, dtype=np.float32)


def half_of(x: torch.Tensor, grad: torch.Tensor, spikes: torch.Tensor) -> torch.Tensor:
    """Return a surrogate gradient as snntorch asks for it."""
    return 0.5 * grad / (1.0 + x.abs()) ** 2


def single_exponential(v_mem: torch.Tensor, spike_threshold: float) -> torch.Tensor:
    """Return the factor of sinabs's SingleExponential."""
    from sinabs.activation import SingleExponential

    return SingleExponential()(v_mem, spike_threshold)


def reverse_gradient(x: torch.Tensor) -> torch.Tensor:
    """Apply a module that reverses gradients."""
    from pytorch_revgrad import RevGrad

    return RevGrad(alpha=0.7)(x)
