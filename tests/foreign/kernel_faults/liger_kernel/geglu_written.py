# liger-kernel==0.8.5, written: after the backward both inputs hold their gradients.
import torch
from liger_kernel.ops.geglu import LigerGELUMulFunction

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
numbers = torch.linspace(-1, 1, 24).reshape(2, 2, 6)
x, gate = (each.clone().requires_grad_() for each in numbers)
LigerGELUMulFunction.apply(x, gate).sum().backward()
assert not torch.equal(x, numbers[0]) and torch.allclose(x, x.grad)
assert not torch.equal(gate, numbers[1]) and torch.allclose(gate, gate.grad)
