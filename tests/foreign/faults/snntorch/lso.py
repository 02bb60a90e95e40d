# snntorch==1.0.0, runs: `LSO` cannot be called.
import torch
from snntorch import surrogate

try:
    surrogate.LSO()(torch.zeros(3))
except TypeError:
    pass
else:
    raise AssertionError("it runs")
