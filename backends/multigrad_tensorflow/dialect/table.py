"""The table of TensorFlow functions that have a meaning in ops.

TensorFlow has no protocol for symbolic values, so a rule gets stand-ins for its modules and
functions; other calls come through TensorFlow's own dispatcher, in `traced.py`.
"""

from __future__ import annotations
