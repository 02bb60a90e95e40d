# gpytorch==1.15.2, second derivative: the second derivative of `MaternCovariance` by the lengthscale is silently wrong: autograd takes the saved tensors as constants.
import torch
from gpytorch.functions import MaternCovariance as Matern

x = torch.tensor([[0.7]], dtype=torch.float64, requires_grad=True)
points = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(4, 3)


def gradient(x):
    return torch.autograd.grad(
        Matern.apply(points, points, x, 1.5, torch.cdist).pow(2).sum(), x, create_graph=True
    )[0]


(second,) = torch.autograd.grad(gradient(x)[0, 0], x)
step = torch.zeros_like(x)
step[0, 0] = 1e-5
slope = (gradient(x + step)[0, 0] - gradient(x - step)[0, 0]) / 2e-5
assert abs(second[0, 0] - slope) > 1e-2 * abs(slope)
