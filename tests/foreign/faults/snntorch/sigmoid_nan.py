# snntorch==1.0.0, far numbers: `sigmoid` divides infinity by infinity from -3.5 down, with its default slope of 25.
import torch
from snntorch import surrogate

x = torch.tensor([-4.0, 0.5], requires_grad=True)
surrogate.sigmoid()(x).sum().backward()
assert x.grad.isnan().tolist() == [True, False]
