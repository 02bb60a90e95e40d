# norse==1.1.0, documentation: `heavi_erfc` lacks the factor alpha that the derivative of erfc(-alpha * x) has.
import math

import torch
from norse.torch.functional.threshold import threshold

x = torch.tensor([0.0], requires_grad=True)
for alpha in (1.0, 3.0):
    (grad,) = torch.autograd.grad(threshold(x, "heavi_erfc", torch.as_tensor(alpha)), x)
    assert abs(grad.item() - 2 / math.sqrt(math.pi)) < 1e-6
