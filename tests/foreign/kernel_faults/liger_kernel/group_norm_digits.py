# liger-kernel==0.8.5, linear: in float64 the weight's gradient has the eight bits of bfloat16.
import torch
from liger_kernel.ops.group_norm import LigerGroupNormFunction

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.linspace(-1, 1, 48, dtype=torch.float64).sin().reshape(2, 4, 6)
u = torch.linspace(-1, 2, 48, dtype=torch.float64).cos().reshape(2, 4, 6)
weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
bias = torch.zeros(4, dtype=torch.float64, requires_grad=True)
y = LigerGroupNormFunction.apply(x, weight, bias, 4, 2, 1e-5)
found = torch.autograd.grad(y, (weight, bias), u)
wanted = torch.autograd.grad(torch.nn.functional.group_norm(x, 2, weight, bias), (weight, bias), u)
for got, want in zip(found, wanted, strict=True):
    assert not torch.allclose(got, want, rtol=1e-4)
