"""Rules as NumPy users write them; every function here is a rule that must be captured as it
stands.

Run on arrays as it is, each is its own oracle (see test_rules_of_libraries.py).
"""

import math

import numpy as np
from numpy import maximum as larger

WINDOW = np.float32(0.75)


def _soft_mask(x, width):
    return 1 / (1 + np.exp(-x / max(width, 1e-6)))


def select(ctx, grad_out, tin):
    return np.select([tin > 1, tin > 0], [grad_out, tin], 0.0).astype(tin.dtype)


def name_imported_from_numpy(ctx, grad_out, tin):
    return grad_out * larger(tin, WINDOW)


def clip(ctx, grad_out, tin):
    return grad_out * np.clip(tin, 0, 1) + np.clip(tin, None, 0.5) + tin.clip(min=0.25)


def step_with_a_value_at_zero(ctx, grad_out, tin):
    return grad_out * np.heaviside(tin, tin.dtype.type(0.5))


def mask_to_the_gradients_dtype(ctx, grad_out, tin):
    return grad_out * (tin > 0).astype(grad_out.dtype)


def mask_to_single(ctx, grad_out, tin):
    return grad_out * (tin > 0).astype(np.float32)


def mask_arithmetic(ctx, grad_out, tin):
    return grad_out * (tin >= -1) * (tin <= 1) + ((tin > 2) | ~(tin > -2)) * grad_out


def mask_logic(ctx, grad_out, tin):
    inside = np.logical_and(tin >= -1, np.less_equal(tin, 1))
    return grad_out * (inside ^ np.equal(tin, 0)) * np.logical_not(np.isnan(tin))


def extremes(ctx, grad_out, tin):
    return np.minimum(np.maximum(grad_out, -1), 1) + grad_out * np.max(tin) - np.amin(tin, axis=0)


def unit_norm_of_rows(ctx, grad_out, tin):
    return grad_out / np.linalg.norm(grad_out, axis=-1, keepdims=True)


def sums(ctx, grad_out, tin):
    return (
        grad_out - np.sum(grad_out, axis=0, keepdims=True) / tin.shape[0] + tin.sum(axis=1).mean()
    )


def centered_rows(ctx, grad_out, tin):
    return grad_out - np.mean(grad_out, axis=-1, keepdims=True) - grad_out.mean(0)


def standardized(ctx, grad_out, tin):
    spread = np.std(grad_out) + grad_out.std() + tin.var(axis=0) + np.var(tin, ddof=1)
    return (grad_out - grad_out.mean()) / spread


def any_and_all(ctx, grad_out, tin):
    return grad_out * np.any(tin > 1, axis=-1, keepdims=True) * np.all(tin > -9)


def like(ctx, grad_out, tin):
    ones = np.ones_like(grad_out) + np.full_like(tin, 2.0) - np.zeros_like(tin)
    return np.copy(grad_out) * ones


def numbers_of_numpy(ctx, grad_out, tin):
    return np.float32(0.5) * grad_out + tin * np.pi / WINDOW


def number_of_elements(ctx, grad_out, tin):
    return grad_out / math.sqrt(tin.size) / np.size(tin) / len(tin)


def product_of_the_shape(ctx, grad_out, tin):
    return grad_out / float(np.prod(tin.shape)) + tin * grad_out.ndim


def smallest_number(ctx, grad_out, tin):
    return grad_out / (np.abs(tin) + np.finfo(tin.dtype).eps)


def without_nan(ctx, grad_out, tin):
    with np.errstate(all="ignore"):
        return np.nan_to_num(grad_out / (tin * 0), nan=1.0) / 2


def branch_on_rank(ctx, grad_out, tin):
    if tin.ndim > 1 and np.ndim(tin) == 2:
        return grad_out - grad_out.mean(axis=tuple(range(1, tin.ndim)), keepdims=True)
    return grad_out


def branch_on_class(ctx, grad_out, tin, width=1.0):
    assert np.isscalar(width)
    return grad_out * tin if isinstance(tin, np.ndarray) else grad_out


def branch_on_dtype(ctx, grad_out, tin):
    if tin.dtype == np.float32 or tin.dtype == np.dtype("float64"):
        return grad_out * tin
    return grad_out


def helper(ctx, grad_out, tin, width: float = 2.0):
    return grad_out * _soft_mask(tin, width)
