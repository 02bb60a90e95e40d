"""TensorFlow's dialect. A rule written in `tf` functions runs as it is, on TensorFlow only.

Rules in NumPy, in torch, in methods and operators or in `xg.xp` run on TensorFlow through the rule IR.
"""

from __future__ import annotations
