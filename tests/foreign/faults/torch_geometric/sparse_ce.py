# torch-geometric==2.8.1, derivative: a pair that is given twice counts twice in `sparse_cross_entropy`, and once in its gradient.
import torch
from torch_geometric.utils.cross_entropy import sparse_cross_entropy

x = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
pairs = torch.tensor([[0, 0], [1, 1]])
(found,) = torch.autograd.grad(sparse_cross_entropy(x, pairs), x)
plain = -2.0 * torch.log_softmax(x, -1)[0, 1]
assert torch.allclose(sparse_cross_entropy(x, pairs), plain)
(wanted,) = torch.autograd.grad(plain, x)
assert abs(found[0, 1] - wanted[0, 1] - 1.0) < 1e-9
