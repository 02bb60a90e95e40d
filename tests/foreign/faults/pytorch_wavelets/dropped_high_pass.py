# pytorch_wavelets==1.3.0, each input: `SFB1D` gives the high pass no gradient where the low pass needs none.
import torch
from pytorch_wavelets.dwt.lowlevel import SFB1D

low, high = torch.randn(2, 1, 3, 5)
filters = torch.randn(2, 1, 1, 4)
high.requires_grad_()
(without,) = torch.autograd.grad(SFB1D.apply(low, high, *filters, 2).sum(), high, allow_unused=True)
low.requires_grad_()
(wanted,) = torch.autograd.grad(SFB1D.apply(low, high, *filters, 2).sum(), high)
assert without is None
assert wanted.abs().max() > 0.1
