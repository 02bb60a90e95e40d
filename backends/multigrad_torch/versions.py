"""What differs between releases of torch: each name in one form, for all that are supported.

docs/versions.md says which these are.
"""

from __future__ import annotations

import torch


@torch.compiler.assume_constant_result
def is_exporting() -> bool:
    """Return whether torch.export traces.

    Before torch 2.13, Dynamo takes torch's own for True in all compiled code, and Functions lost
    their gradients. This runs outside of what is traced.
    """
    return torch.compiler.is_exporting()


__all__ = ["is_exporting"]
