"""Rules as torch users write them; every function here is a rule that must be captured as it
stands.

Run on torch tensors as it is, each is its own oracle (see test_rules_of_libraries.py).
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import where as choose

WINDOW = 0.75


def _soft_mask(x: Tensor, width: float) -> Tensor:
    return torch.sigmoid(x / max(width, 1e-6))


def _recursive_sum(x: Tensor, depth: int) -> Tensor:
    return x if depth == 0 else x + _recursive_sum(x, depth - 1)


def where_with_zeros(ctx, grad_out, tin):
    return torch.where(tin > 0, grad_out, torch.zeros_like(grad_out))


def where_with_a_number(ctx, grad_out, tin):
    return grad_out * torch.where((tin > -1) & (tin < 1), 1.0, 0.0)


def name_imported_from_torch(ctx, grad_out, tin):
    return choose(tin > WINDOW, grad_out, 0.0)


def import_inside(ctx, grad_out, tin):
    import torch as t
    from torch.nn.functional import softplus as smooth

    return t.mul(grad_out, smooth(tin))


def annotated(
    ctx: object,
    grad_out: Tensor,
    tin: Tensor | None,
    width: float = 0.5,
) -> Tensor:
    assert tin is not None
    return grad_out * (tin.abs() / width).clamp(max=1.0)


def methods_and_operators(ctx, grad_out, tin):
    return grad_out.mul(tin.pow(2)).add(tin, alpha=0.5).sub(1.0).div(3.0).neg()


def powers(ctx, grad_out, tin):
    near = 1 + tin.abs()
    return grad_out * (tin**2 + near**-1 + near**0.5 + near**-0.5 + tin**3 + 2**tin + near**1.7)


def mask_to_dtype(ctx, grad_out, tin):
    return grad_out * (tin > 0).to(grad_out.dtype)


def mask_to_float(ctx, grad_out, tin):
    return grad_out * (1 - (tin > 0).float())


def mask_type(ctx, grad_out, tin):
    return grad_out * (tin > 0).type(grad_out.dtype) + (tin < -1).type_as(grad_out)


def mask_arithmetic(ctx, grad_out, tin):
    return grad_out * ((tin > 0).float() + (tin < -1).float()) * ~(tin > 2)


def mask_times_mask(ctx, grad_out, tin):
    return grad_out * ((tin > -1) * (tin < 1))


def mask_logic(ctx, grad_out, tin):
    inside = torch.logical_and(tin >= -1, tin <= 1)
    return grad_out * (inside ^ (tin == 0)) * (inside | ~inside).to(grad_out)


def through_float64(ctx, grad_out, tin):
    wide = grad_out.to(torch.float64) * tin.double()
    return wide.to(grad_out.dtype)


def asks_for_float32(ctx, grad_out, tin):
    return grad_out * tin if tin.dtype == torch.float32 else grad_out


def asks_for_half(ctx, grad_out, tin):
    return grad_out if tin.dtype in (torch.float16, torch.bfloat16) else grad_out * tin


def smallest_number(ctx, grad_out, tin):
    return grad_out / (grad_out.norm() + torch.finfo(grad_out.dtype).eps)


def constant_of_the_inputs_dtype(ctx, grad_out, tin):
    half = torch.tensor(0.5, dtype=tin.dtype, device=tin.device)
    return grad_out * torch.heaviside(tin, half)


def constant_on_the_left(ctx, grad_out, tin):
    two = torch.tensor(2.0)
    return (two - grad_out) * (two / (two + tin.abs())) + two * tin + two ** tin.abs().neg()


def class_of_a_tensor(ctx, grad_out, tin, width=1.0):
    assert isinstance(width, float) and not isinstance(grad_out, float)
    return grad_out * tin if isinstance(grad_out, torch.Tensor) else grad_out


def is_a_tensor(ctx, grad_out, tin):
    return grad_out * tin if torch.is_tensor(grad_out) else grad_out


def first_length(ctx, grad_out, tin):
    return grad_out * tin / tin.shape[0] / tin.size(-1) / len(tin)


def number_of_elements(ctx, grad_out, tin):
    return grad_out / tin.numel() ** 0.5 / torch.numel(tin) / tin.size().numel()


def number_of_elements_in_math(ctx, grad_out, tin):
    return grad_out / math.sqrt(tin.numel())


def unpacked_shape(ctx, grad_out, tin):
    n, m = tin.shape
    return grad_out * n / m


def same_shape_again(ctx, grad_out, tin):
    assert grad_out.shape == tin.shape
    return (grad_out * tin).reshape(tin.shape).view_as(tin).view(grad_out.size())


def rank_in_arithmetic(ctx, grad_out, tin):
    return grad_out / tin.ndim


def loop_over_axes(ctx, grad_out, tin):
    for axis in range(tin.ndim):
        grad_out = grad_out - grad_out.mean(dim=axis, keepdim=True)
    return grad_out


def branch_on_rank(ctx, grad_out, tin):
    if tin.dim() > 1:
        return grad_out - grad_out.mean(dim=tuple(range(1, grad_out.dim())), keepdim=True)
    return grad_out


def reductions(ctx, grad_out, tin):
    return (
        grad_out * tin.sum()
        + grad_out.mean(0, keepdim=True)
        + tin.amax(dim=-1, keepdim=True)
        + torch.amin(tin, dim=(0, 1))
        + tin.max()
        + torch.min(tin)
        + grad_out * torch.any(tin > 1)
        + grad_out * (tin > -9).all()
    )


def norms(ctx, grad_out, tin):
    total = (
        grad_out.norm(p=2).clamp(min=1e-6)
        + torch.linalg.vector_norm(tin)
        + grad_out.norm(p=1)
        + tin.norm(math.inf)
    )
    return grad_out / total / torch.norm(grad_out, dim=-1, keepdim=True)


def deviations(ctx, grad_out, tin):
    return (grad_out - grad_out.mean()) / (
        grad_out.std() + torch.std(tin, dim=-1, keepdim=True) + tin.var(unbiased=False)
    )


def clamps(ctx, grad_out, tin):
    return torch.clamp(grad_out, -0.5, 0.5) + tin.clamp_min(0.0) + tin.clip(max=1.0) + F.relu(tin)


def network_functions(ctx, grad_out, tin):
    smooth = F.softplus(tin, beta=2) + F.gelu(tin) + F.silu(tin) + F.elu(tin) + F.mish(tin)
    edged = F.hardtanh(tin) + F.relu6(tin) + F.leaky_relu(tin, 0.2) + F.hardsigmoid(tin)
    return grad_out * (
        smooth + edged + F.softsign(tin) + F.logsigmoid(tin) + F.threshold(tin, 1, 0)
    )


def without_nan(ctx, grad_out, tin):
    return torch.nan_to_num(grad_out / (tin * 0), nan=1.0, posinf=2.0, neginf=-2.0)


def pi_of_torch(ctx, grad_out, tin):
    return grad_out * (2 / torch.pi) / (1 + (torch.pi * tin) ** 2)


def helper_of_the_same_file(ctx, grad_out, tin, width: float = 2.0):
    return grad_out * _soft_mask(tin, width) + _recursive_sum(tin, 2)


def helper_inside_a_lambda(ctx, grad_out, tin, width: float = 2.0):
    limit = lambda value: _soft_mask(value, max(width, 0.1))
    return grad_out * limit(tin) + [max(width, v) for v in (0.5, 3.0)][1]


def helper_in_a_partial(ctx, grad_out, tin):
    return grad_out * partial(_soft_mask, width=0.5)(tin)


@torch.no_grad()
def decorated(ctx, grad_out, tin, width: float = 2.0):
    return grad_out * max(width, 1.0) * tin
