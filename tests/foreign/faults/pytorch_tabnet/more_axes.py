# pytorch-tabnet==4.1.0, sizes: `sparsemax` is silently wrong for [2, 1, 4, 6]: its backward squeezes the axis of length 1, too.
import torch
from pytorch_tabnet.sparsemax import sparsemax

x = torch.linspace(-1.0, 1.0, 48, dtype=torch.float64).sin().mul(3).reshape(2, 4, 6)
weight = torch.arange(6.0)
gradients = []
for shape in ((2, 4, 6), (2, 1, 4, 6)):
    leaf = x.reshape(shape).clone().requires_grad_()
    (weight * sparsemax(leaf.clone(), -1)).sum().backward()
    gradients.append(leaf.grad.reshape(2, 4, 6))
assert (gradients[0] - gradients[1]).abs().max() > 0.1
