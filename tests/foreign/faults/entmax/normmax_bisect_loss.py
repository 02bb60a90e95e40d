# entmax==1.3, second derivative: the second derivative of `NormmaxBisectLossFunction` is silently wrong: autograd takes the saved p as a constant.
import torch
from entmax.losses import NormmaxBisectLossFunction

x = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
target = torch.tensor([1])


def gradient(x):
    return torch.autograd.grad(
        NormmaxBisectLossFunction.apply(x, target, 2.0, 50).pow(2).sum(), x, create_graph=True
    )[0]


(second,) = torch.autograd.grad(gradient(x)[0, 0], x)
step = torch.zeros_like(x)
step[0, 0] = 1e-5
slope = (gradient(x + step)[0, 0] - gradient(x - step)[0, 0]) / 2e-5
assert abs(second[0, 0] - slope) > 1e-2 * abs(slope)
