"""Whose dtypes a call is to have, in code that mentions no framework: what the call says of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.ir.types import T
from ...graph.passes.facts import LIBRARY, ON_NUMBERS
from ...trace.owners import OF_CODE, TENSORS, UNDECIDED, meet_numpy, rely_on_library
from ...trace.trace import NeedsConcrete, Trace, Value
from ..symbols.dtypes import is_tensor, own_dtype
from ..symbols.items import is_number
from .oracle import leaves_of


def meet_call(trace: Trace, given: Any) -> None:
    """Note what the arguments of a call say.

    Raises:
        NeedsConcrete: the library that the tensors are of has to be known.
    """
    if trace.types_of not in UNDECIDED:  # as most code
        return
    is_lent = trace.types_of != TENSORS or ON_NUMBERS in trace.facts
    if is_lent and any(isinstance(x, np.ndarray) for x in leaves_of(given)):
        meet_numpy(trace)
    elif _depends_on_library(trace, given):
        rely_on_library(trace)
        if trace.types_of not in OF_CODE and LIBRARY not in trace.facts:
            raise NeedsConcrete(LIBRARY)


def _depends_on_library(trace: Trace, given: Any) -> bool:
    """Return whether what libraries give for a call may be of other dtypes."""
    if trace.types_of == TENSORS and LIBRARY in trace.facts:
        return False  # nobody asks any more
    if trace.is_in("bfloat16"):
        return True
    leaves = leaves_of(given)
    symbols = [x for x in leaves if isinstance(x, Value)]
    others = [x for x in leaves if not isinstance(x, Value)]
    is_open = any(own_dtype(x) != T for x in symbols if is_tensor(x) and not is_number(x))
    return is_open or any(hasattr(x, "dtype") for x in others)
