# liger-kernel==0.8.5, backward twice: a second backward through a kept graph gives other numbers.
import torch
from liger_kernel.ops.fused_linear_kl_div import LigerFusedLinearKLDivFunction

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.linspace(-1, 1, 32).sin().reshape(4, 8).requires_grad_()
weight = torch.linspace(-1, 2, 48).cos().reshape(6, 8)
args = (torch.full((4, 6), 1 / 6),)
y = 2.0 * LigerFusedLinearKLDivFunction.apply(x, weight, *args)
(first,) = torch.autograd.grad(y, x, retain_graph=True)
first = first.clone()
(second,) = torch.autograd.grad(y, x, retain_graph=True)
assert torch.allclose(second, 2.0 * first)
