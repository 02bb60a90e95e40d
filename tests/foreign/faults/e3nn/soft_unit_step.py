# e3nn==0.6.0, far numbers: the gradient of `soft_unit_step` is NaN for small positive numbers, where it is 0.
import torch
from e3nn.math import soft_unit_step

x = torch.tensor([1e-30, 0.01], requires_grad=True)
soft_unit_step(x).sum().backward()
assert x.grad.isnan().tolist() == [True, False]
