# torch-einops-utils==0.2.0, second derivative: the second derivative of `_SoftTargetCrossEntropy` is silently wrong: autograd takes the saved tensors as constants.
import torch
from torch_einops_utils.stable_softmax import _SoftTargetCrossEntropy

x = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
target = torch.tensor([[0.1, 0.5, 0.4]], dtype=torch.float64)


def gradient(x):
    return torch.autograd.grad(
        _SoftTargetCrossEntropy.apply(x, target).pow(2).sum(), x, create_graph=True
    )[0]


(second,) = torch.autograd.grad(gradient(x)[0, 0], x)
step = torch.zeros_like(x)
step[0, 0] = 1e-5
slope = (gradient(x + step)[0, 0] - gradient(x - step)[0, 0]) / 2e-5
assert abs(second[0, 0] - slope) > 1e-2 * abs(slope)
