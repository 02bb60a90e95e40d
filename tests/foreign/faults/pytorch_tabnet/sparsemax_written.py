# pytorch-tabnet==4.1.0, written: `sparsemax` subtracts the largest number from its input in place, which other code may hold.
import torch
from pytorch_tabnet.sparsemax import sparsemax

x = torch.tensor([[1.0, 2.0, 3.0]])
sparsemax(x, -1)
assert x.tolist() == [[-2.0, -1.0, 0.0]]
