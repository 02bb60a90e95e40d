"""Drop-in modules for other packages: their names, signatures and defaults, with our rules.

`import multigrad.compat.snntorch as surrogate` instead of `from snntorch import surrogate`.
They need torch (`optax`: jax), not the packages.

May import the rooms up to `keras`; docs/architecture.md has their order.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.backend.discovery import load_backend
from ..engine.support.public_modules import Getter, Lister, module_hooks

__all__ = ["norse", "snntorch", "spikingjelly"]


def served_by(backend: str, room: str, module: str, names: Iterable[str]) -> tuple[Getter, Lister]:
    """Return `__getattr__` and `__dir__` of a module whose public names are a backend's, which
    loads as one is asked for.

    Args:
        room: the module that has them, in the backend's package.
        module: the name of the module that is asked.
    """

    def load(name: str) -> Any:
        load_backend(backend)  # says what to install where the framework is missing
        return getattr(import_module(f"multigrad_{backend}.{room}"), name)

    return module_hooks(module, names, load)


# Loaded at first use, because they need torch.
def _load(name: str) -> Any:
    return import_module(f"{__name__}.{name}")


if TYPE_CHECKING:
    from . import norse, snntorch, spikingjelly
else:
    __getattr__, __dir__ = module_hooks(__name__, __all__, _load)
