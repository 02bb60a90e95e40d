# linear_operator==0.6.1, second derivative: the second derivative of `inv_quad` is silently wrong: autograd takes the solution as a constant.
import torch
from linear_operator import to_linear_operator

x = torch.tensor([[1.0, 0.5], [0.2, 2.0]], dtype=torch.float64, requires_grad=True)
b = torch.tensor([[1.0], [3.0]], dtype=torch.float64)


def gradient(x):
    matrix = x @ x.mT + torch.eye(2, dtype=torch.float64)
    return torch.autograd.grad(to_linear_operator(matrix).inv_quad(b), x, create_graph=True)[0]


(second,) = torch.autograd.grad(gradient(x)[0, 0], x)
step = torch.zeros_like(x)
step[0, 0] = 1e-5
slope = (gradient(x + step)[0, 0] - gradient(x - step)[0, 0]) / 2e-5
assert abs(second[0, 0] - slope) > 1e-2 * abs(slope)
