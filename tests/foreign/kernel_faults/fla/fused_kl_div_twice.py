# fla-core==0.6.0, backward twice: a second backward through a kept graph gives other numbers.
import torch
from fla.modules.fused_kl_div.ops import FusedKLDivLossFunction

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.linspace(-1, 1, 32).sin().reshape(4, 8).requires_grad_()
weight = torch.linspace(-1, 2, 48).cos().reshape(6, 8)
args = (x.detach().cos(), weight, weight.sin(), "batchmean", 1.0, True)
y = 2.0 * FusedKLDivLossFunction.apply(x, *args)
(first,) = torch.autograd.grad(y, x, retain_graph=True)
first = first.clone()
(second,) = torch.autograd.grad(y, x, retain_graph=True)
assert torch.allclose(second, 2.0 * first)
