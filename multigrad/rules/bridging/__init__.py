"""Bridges: an activation or Function of one framework (the guest) in another one (the host).

The tensors, and autodiff, belong to the host; forward and backward run in the guest. In eager code
the guest reads the host's memory where alignment and layout allow; in compiled code the host calls
it back.
"""

from .functions import call_activation, call_function

__all__ = ["call_activation", "call_function"]
