# spikingjelly==2.0.0, documentation: `SquarewaveFourierSeries` stops at n - 1 where its documentation sums to n.
import torch
from spikingjelly.activation_based import surrogate

x = torch.zeros(1, requires_grad=True)
surrogate.SquarewaveFourierSeries(n=5, T_period=8.0)(x).sum().backward()
assert abs(x.grad.item() - 4 * 4 / 8.0) < 1e-6
