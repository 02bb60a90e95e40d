# snntorch==1.0.0, derivative: the gradient of `triangular` does not fall off, and it has the wrong sign wherever the neuron spikes.
import torch
from snntorch import surrogate

x = torch.tensor([-9.0, -0.1, 0.1, 9.0], requires_grad=True)
surrogate.triangular()(x).sum().backward()
assert x.grad.tolist() == [1.0, 1.0, -1.0, -1.0]
