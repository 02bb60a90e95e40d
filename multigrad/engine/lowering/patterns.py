"""Fast kernels are turned off: `without`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...core.backend.discovery import entry_points, load_backend, loaded
from ...core.backend.rows import DISABLED, Pattern
from ...core.support.threads import set_within
from ...errors import MultigradError, suggest


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Turn off fast kernels for code lowered inside the block (`xg.lower`; layers keep theirs).

    Examples:
        >>> import torch
        >>> from multigrad.engine.lowering.patterns import all_patterns, without
        >>> step = xg.lower("triangular", "torch", forward="Heaviside")
        >>> with without(*all_patterns()):  # to see whether a fast kernel is to blame
        ...     plain = xg.lower("triangular", "torch", forward="Heaviside")
        >>> x = torch.tensor([0.25, -2.0])
        >>> bool((step.apply(x) == plain.apply(x)).all())
        True

    Raises:
        MultigradError: no loaded backend has a row of that name.
        BackendNotFound: the name begins with a backend whose framework is not installed.
    """
    for backend in {name.partition(".")[0] for name in names} & set(entry_points()):
        load_backend(backend)
    rows = all_patterns()
    for name in names:
        if name not in rows:
            raise MultigradError(
                f"no fast kernel {name!r}{suggest(name, rows)} "
                f"(of the loaded backends: {', '.join(sorted(rows)) or 'none'})"
            )
    # A context variable, so that other threads keep their kernels.
    with set_within(DISABLED, DISABLED.get() | set(names)):
        yield


def all_patterns() -> dict[str, Pattern]:
    """Return the rows of all loaded backends by name."""
    return {row.name: row for backend in loaded() for row in backend.kernels.fast.patterns}
