"""JAX's dialect. `jax.numpy` offers no protocol, so a rule written in it runs as it is, on jax only.

Rules in NumPy, in torch, in methods and operators or in `xg.xp` run on jax through the rule IR.
"""

from __future__ import annotations
