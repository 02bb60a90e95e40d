# entmax==1.3, second derivative: the second derivative of `entmax_bisect` is NaN where a probability is 0: a power of 0 is differentiated.
import torch
from entmax import entmax_bisect

x = torch.tensor([[0.3, -0.2, -9.0]], dtype=torch.float64, requires_grad=True)
weight = torch.tensor([[1.0, 2.0, 3.0]])


def gradient(x):
    return torch.autograd.grad((weight * entmax_bisect(x)).sum(), x, create_graph=True)[0]


(second,) = torch.autograd.grad(gradient(x)[0, 0], x)
step = torch.zeros_like(x)
step[0, 0] = 1e-5
slope = (gradient(x + step)[0, 0] - gradient(x - step)[0, 0]) / 2e-5
assert second[0, 0].isnan()
assert slope.isfinite()
