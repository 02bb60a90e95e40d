# spikingjelly==2.0.0, zeros: the gradient of `FakeNumericalGradient` is -inf at -0.0, and alpha at 0.0.
import torch
from spikingjelly.activation_based import surrogate

x = torch.tensor([0.0, -0.0], requires_grad=True)
surrogate.FakeNumericalGradient(alpha=0.3)(x).sum().backward()
assert abs(x.grad[0].item() - 0.3) < 1e-6
assert x.grad[1].item() == float("-inf")
