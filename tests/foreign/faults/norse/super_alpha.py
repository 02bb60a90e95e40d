# norse==1.1.0, documentation: `super` ignores its `alpha`: the gradient is always that of alpha = 1.
import torch
from norse.torch.functional.threshold import threshold

x = torch.tensor([0.5], requires_grad=True)
for alpha in (1.0, 100.0):
    (grad,) = torch.autograd.grad(threshold(x, "super", torch.as_tensor(alpha)), x)
    assert abs(grad.item() - 1 / (1 + 0.5) ** 2) < 1e-6
