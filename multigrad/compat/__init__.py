"""Drop-in modules for other packages: their names, signatures and defaults, with our rules.

`import multigrad.compat.snntorch as surrogate` instead of `from snntorch import surrogate`.
They need torch (`optax`: jax), not the packages.

May import the rooms up to `keras`; docs/architecture.md has their order.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.support.lazy_modules import module_hooks

__all__ = ["norse", "snntorch", "spikingjelly"]


# Loaded at first use, because they need torch.
def _load(name: str) -> Any:
    return import_module(f"{__name__}.{name}")


if TYPE_CHECKING:
    from . import norse, snntorch, spikingjelly
else:
    __getattr__, __dir__ = module_hooks(__name__, __all__, _load)
