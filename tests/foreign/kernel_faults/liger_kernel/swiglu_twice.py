# liger-kernel==0.8.5, backward twice: a second backward through a kept graph gives other numbers.
import torch
from liger_kernel.ops.swiglu import LigerSiLUMulFunction

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
x, gate = (each.clone().requires_grad_() for each in torch.linspace(-1, 1, 24).reshape(2, 2, 6))
y = LigerSiLUMulFunction.apply(x, gate)
(first,) = torch.autograd.grad(y, x, torch.ones_like(x), retain_graph=True)
first = first.clone()
(second,) = torch.autograd.grad(y, x, torch.ones_like(x), retain_graph=True)
assert not torch.allclose(first, second, rtol=0.05)
