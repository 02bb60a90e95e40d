"""The rules of other packages, by their names and with their defaults.

Importing it registers all of them.
"""

from . import braintools, names, optax, peers, snntorch, spikingjelly

__all__ = ["braintools", "names", "optax", "peers", "snntorch", "spikingjelly"]
