# freegrad==1.0.1, documentation: `centralize` with keepdim=False subtracts the means of other rows, silently where the tensor is square.
import freegrad
import torch

grad = torch.tensor([[1.0, 3.0], [10.0, 30.0]])
centered = freegrad.get("centralize")(None, grad, None, keepdim=False)
assert centered.mean(dim=-1).tolist() == [-9.0, 9.0]
