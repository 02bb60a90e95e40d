"""Objects and arguments of torch packages that a factory makes."""

from __future__ import annotations

import functools

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


FIRST_HALF = np.array([[2, 0, 3, 1]] * 4).reshape(2, 2, 4)
BACK = np.argsort(FIRST_HALF, -1)
ORDER = np.argsort(np.arange(24).reshape(4, 6) * 7 % 11, 1)
ORDER_BACK = np.argsort(ORDER, 1)


def tanh_of(x: torch.Tensor) -> torch.Tensor:
    """Return what is applied by those that ask for a function."""
    return torch.tanh(x)


class Half(torch.nn.Module):
    """A map without parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(0.5 * x)


def positive_definite(x: torch.Tensor) -> torch.Tensor:
    """Return a matrix that has a Cholesky factor."""
    return x @ x.mT + 3.0 * torch.eye(x.shape[-2], dtype=x.dtype)


# --- memcnn: blocks that compute their input again from their output ------------------------------


def memcnn_additive(x: torch.Tensor) -> torch.Tensor:
    """Apply an additive block."""
    from memcnn.models.additive import AdditiveBlockFunction

    return AdditiveBlockFunction.apply(x, Half(), Half())


def memcnn_additive_2(x: torch.Tensor) -> torch.Tensor:
    """Apply another implementation of it."""
    from memcnn.models.additive import AdditiveBlockFunction2

    return AdditiveBlockFunction2.apply(x, Half(), Half())


def memcnn_additive_inverse(y: torch.Tensor) -> torch.Tensor:
    """Apply its inverse."""
    from memcnn.models.additive import AdditiveBlockInverseFunction

    return AdditiveBlockInverseFunction.apply(y, Half(), Half())


def memcnn_additive_inverse_2(y: torch.Tensor) -> torch.Tensor:
    """Apply another implementation of its inverse."""
    from memcnn.models.additive import AdditiveBlockInverseFunction2

    return AdditiveBlockInverseFunction2.apply(y, Half(), Half())


class Affine(torch.nn.Module):
    """A logarithm of a scale, and a shift, without parameters."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 1.5 + torch.tanh(0.5 * x), torch.tanh(x)


def memcnn_affine(x: torch.Tensor) -> torch.Tensor:
    """Apply an affine block."""
    from memcnn.models.affine import AffineBlockFunction

    return AffineBlockFunction.apply(x, Affine(), Affine())


def memcnn_affine_2(x: torch.Tensor) -> torch.Tensor:
    """Apply another implementation of it."""
    from memcnn.models.affine import AffineBlockFunction2

    return AffineBlockFunction2.apply(x, Affine(), Affine())


def memcnn_affine_inverse(y: torch.Tensor) -> torch.Tensor:
    """Apply its inverse."""
    from memcnn.models.affine import AffineBlockInverseFunction

    return AffineBlockInverseFunction.apply(y, Affine(), Affine())


def memcnn_affine_inverse_2(y: torch.Tensor) -> torch.Tensor:
    """Apply another implementation of its inverse."""
    from memcnn.models.affine import AffineBlockInverseFunction2

    return AffineBlockInverseFunction2.apply(y, Affine(), Affine())


# --- pytorch_wavelets: its modules read their filters from files ----------------------------------


@functools.cache
def wavelets(name: str, dtype: torch.dtype, *args: object) -> torch.nn.Module:
    """Return a module of a dtype, made once."""
    import pytorch_wavelets

    return getattr(pytorch_wavelets, name)(*args).to(dtype)


def wavelets_dtcwt(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Transform at one level."""
    low, (high,) = wavelets("DTCWTForward", x.dtype, "near_sym_a", "qshift_a", 1)(x)
    return low, high


def wavelets_dtcwt_2(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Transform at two levels."""
    low, (first, second) = wavelets("DTCWTForward", x.dtype, "near_sym_a", "qshift_a", 2)(x)
    return low, first, second


def wavelets_dtcwt_inverse(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Transform back from one level."""
    return wavelets("DTCWTInverse", low.dtype)((low, [high]))


def wavelets_dtcwt_inverse_2(
    low: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    """Transform back from two levels."""
    return wavelets("DTCWTInverse", low.dtype)((low, [first, second]))


def wavelets_scatter(x: torch.Tensor) -> torch.Tensor:
    """Scatter at one level."""
    return wavelets("ScatLayer", x.dtype)(x)


def wavelets_scatter_rotated(x: torch.Tensor) -> torch.Tensor:
    """Scatter at one level by filters that are rotated."""
    return wavelets("ScatLayer", x.dtype, "near_sym_b_bp")(x)


def wavelets_scatter_2(x: torch.Tensor) -> torch.Tensor:
    """Scatter at two levels."""
    return wavelets("ScatLayerj2", x.dtype)(x)


def wavelets_scatter_rotated_2(x: torch.Tensor) -> torch.Tensor:
    """Scatter at two levels by filters that are rotated."""
    return wavelets("ScatLayerj2", x.dtype, "near_sym_b_bp", "qshift_b_bp")(x)


# --- linear_operator ------------------------------------------------------------------------------


def linear_operator_matmul(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply by a sum of operators."""
    from linear_operator import to_linear_operator

    return to_linear_operator(positive_definite(x)).add_diagonal(b[..., 0]).matmul(b)


def linear_operator_solve(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Solve."""
    from linear_operator import to_linear_operator

    return to_linear_operator(positive_definite(x)).solve(b)


def linear_operator_inv_quad(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return b^T A^-1 b."""
    from linear_operator import to_linear_operator

    return to_linear_operator(positive_definite(x)).inv_quad(b)


def linear_operator_logdet(x: torch.Tensor) -> torch.Tensor:
    """Return a logarithm of a determinant."""
    from linear_operator import to_linear_operator

    return to_linear_operator(positive_definite(x)).logdet()


def linear_operator_sqrt_inv_matmul(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply by the inverse of a square root, by contour integrals."""
    from linear_operator import to_linear_operator

    return to_linear_operator(positive_definite(x)).sqrt_inv_matmul(b)


def linear_operator_diagonalization(x: torch.Tensor) -> torch.Tensor:
    """Return eigenvalues, by Lanczos."""
    from linear_operator import to_linear_operator

    return to_linear_operator(positive_definite(x)).diagonalization(method="symeig")[0]


def linear_operator_pivoted_cholesky(x: torch.Tensor) -> torch.Tensor:
    """Factor, the largest number of the diagonal first."""
    from linear_operator import to_linear_operator

    return to_linear_operator(positive_definite(x)).pivoted_cholesky(rank=4)


# --- pyro: samples with gradients of their own ----------------------------------------------------


def pyro_avf(loc: torch.Tensor, x: torch.Tensor, control: torch.Tensor) -> torch.Tensor:
    """Draw with a velocity field that is learned."""
    from pyro.distributions import AVFMultivariateNormal

    return AVFMultivariateNormal(
        loc, torch.linalg.cholesky(positive_definite(x)), control
    ).rsample()


def pyro_mixture(locs: torch.Tensor, scale: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Draw of a mixture."""
    from pyro.distributions import MixtureOfDiagNormals

    return MixtureOfDiagNormals(locs, scale, logits).rsample()


def pyro_shared_mixture(
    locs: torch.Tensor, scale: torch.Tensor, logits: torch.Tensor
) -> torch.Tensor:
    """Draw of a mixture that shares its covariance."""
    from pyro.distributions import MixtureOfDiagNormalsSharedCovariance

    return MixtureOfDiagNormalsSharedCovariance(locs, scale, logits).rsample()


def pyro_scale_mixture(
    scale: torch.Tensor, logits: torch.Tensor, component: torch.Tensor
) -> torch.Tensor:
    """Draw of a mixture of scales."""
    from pyro.distributions import GaussianScaleMixture

    return GaussianScaleMixture(scale, logits, component).rsample()


# --- others ---------------------------------------------------------------------------------------


def fairscale_copy(x: torch.Tensor) -> torch.Tensor:
    """Copy between streams, both the CPU's."""
    from fairscale.nn.pipe.copy import Copy
    from fairscale.nn.pipe.stream import CPUStream

    return Copy.apply(CPUStream, CPUStream, x)[0]


def fairscale_wait(x: torch.Tensor) -> torch.Tensor:
    """Wait for a stream, the CPU's."""
    from fairscale.nn.pipe.copy import Wait
    from fairscale.nn.pipe.stream import CPUStream

    return Wait.apply(CPUStream, CPUStream, x)[0]


class Decay(torch.nn.Module):
    """A right side of an equation, without parameters."""

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -y * y


def torchdiffeq_adjoint(y: torch.Tensor) -> torch.Tensor:
    """Solve y' = -y^2, the gradient by an adjoint equation."""
    from torchdiffeq import odeint_adjoint

    times = torch.linspace(0.0, 0.5, 3, dtype=y.dtype)
    return odeint_adjoint(Decay(), y, times, rtol=1e-8, atol=1e-10, method="dopri5")


def torch_numpy_cat(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Join by an op of torch's own tests of custom ops."""
    from torch.testing._internal.custom_op_db import numpy_cat

    return numpy_cat([x, y], 0)


def torch_numpy_mul_scalar(x: torch.Tensor) -> torch.Tensor:
    """Scale by an op of torch's own tests of custom ops."""
    from torch.testing._internal.custom_op_db import numpy_mul_scalar

    return numpy_mul_scalar(x, scalar=3.14)


def torch_numpy_split_copy(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Split by an op of torch's own tests of custom ops."""
    from torch.testing._internal.custom_op_db import numpy_split_copy

    return tuple(numpy_split_copy(x, [2, 4], 1))


def torch_numpy_exp(x: torch.Tensor) -> torch.Tensor:
    """Write exp into a copy by a class of torch's own tests."""
    from torch.testing._internal.autograd_function_db import NumpyExp_

    return NumpyExp_.apply(x.clone())
