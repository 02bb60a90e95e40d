# pytorch-tabnet==4.1.0, second derivative: the second derivative of `entmax15` is NaN where a probability is 0: the root of 0 is differentiated.
import torch
from pytorch_tabnet.sparsemax import entmax15

x = torch.tensor([[0.3, -0.2, -9.0]], dtype=torch.float64, requires_grad=True)
weight = torch.tensor([[1.0, 2.0, 3.0]])


def gradient(x):
    return torch.autograd.grad((weight * entmax15(x, -1)).sum(), x, create_graph=True)[0]


(second,) = torch.autograd.grad(gradient(x)[0, 0], x)
step = torch.zeros_like(x)
step[0, 0] = 1e-5
slope = (gradient(x + step)[0, 0] - gradient(x - step)[0, 0]) / 2e-5
assert second[0, 0].isnan()
assert slope.isfinite()
