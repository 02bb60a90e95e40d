# snntorch==1.0.0, documentation: `SSO` draws (U - 0.5 + mean) * variance, which has neither the mean nor the variance that are asked for.
import torch
from snntorch import surrogate

torch.manual_seed(0)
x = -torch.ones(100_000, requires_grad=True)
(grad,) = torch.autograd.grad(surrogate.SSO(mean=0.5, variance=0.2)(x).sum(), x)
assert abs(grad.mean() - 0.5 * 0.2) < 1e-3
assert abs(grad.var() - 0.2**2 / 12) < 1e-4
