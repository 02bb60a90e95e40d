"""The public module for a backend's author, who need import nothing else of multigrad.

`Backend` and its groups say what a framework offers; `ops` are the rows of the op table; the rest
is what the functions in the groups are given, or return. `docs/backends.md` walks through one.

May import the rooms up to `graph`; docs/architecture.md has their order.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import (
    GradientError,
    MultigradError,
    RuleError,
    RuleValueError,
    StaleTraceError,
    UnsupportedOp,
)
from ..graph import ops, random
from ..graph.ir.graph import Graph, Node, make_node
from ..graph.ir.op import Op
from ..graph.ir.types import FLOATS, T, Type, dtype_name, is_float
from ..graph.ops.activations import SELU_ALPHA, SELU_SCALE
from ..graph.ops.arrays.indexing import along, as_index, as_pairs, from_front, tile_shape
from ..graph.ops.arrays.loops import scanning
from ..graph.ops.arrays.products import as_matrix
from ..graph.ops.arrays.reductions import over
from ..graph.ops.numerics import as_numpy_dtype
from ..graph.ops.special import MILLS_FROM, inverse_mills
from ..graph.random import REPLAYED
from .contract import (
    Autodiff,
    Backend,
    Casts,
    Compiler,
    Draws,
    Ejection,
    Exports,
    Group,
    Imports,
    Interop,
    Kept,
    Kernels,
    Models,
    Modes,
    Ranks,
    Reader,
    Tensors,
    WeakTypes,
)
from .differences import (
    ALL,
    KINDS,
    SIGN_OF_ZERO,
    SIGNS_OF_VECTORS,
    Difference,
    Differences,
    Mended,
    zeros,
)
from .emitted import (
    Aliasing,
    Attached,
    Body,
    Checks,
    Code,
    Derivative,
    Emitted,
    Made,
    Names,
    Origin,
    Prepared,
    Residuals,
)
from .guest import Guest, Kind, Pull, SharedBuffer, borrow_array, kind_of, lend_array, make_zeros
from .rows import (
    FastKernels,
    Pattern,
    compositions,
    enabled,
    kernel,
    lifted,
    namesakes,
    orderings,
    rows_of,
    unwritten,
)

__all__ = [
    "ALL",
    "FLOATS",
    "KINDS",
    "MILLS_FROM",
    "REPLAYED",
    "SELU_ALPHA",
    "SELU_SCALE",
    "SIGNS_OF_VECTORS",
    "SIGN_OF_ZERO",
    "Aliasing",
    "Attached",
    "Autodiff",
    "Backend",
    "Body",
    "Casts",
    "Checks",
    "Code",
    "Compiler",
    "Derivative",
    "Difference",
    "Differences",
    "Draws",
    "Ejection",
    "Emitted",
    "Exports",
    "FastKernels",
    "GradientError",
    "Graph",
    "Group",
    "Guest",
    "Imports",
    "Interop",
    "Kept",
    "Kernels",
    "Kind",
    "Made",
    "Mended",
    "Models",
    "Modes",
    "MultigradError",
    "Names",
    "Node",
    "Op",
    "Origin",
    "Pattern",
    "Prepared",
    "Pull",
    "Ranks",
    "Reader",
    "Residuals",
    "RuleError",
    "RuleValueError",
    "SharedBuffer",
    "StaleTraceError",
    "T",
    "Tensors",
    "Type",
    "UnsupportedOp",
    "WeakTypes",
    "along",
    "as_index",
    "as_matrix",
    "as_numpy_dtype",
    "as_pairs",
    "borrow_array",
    "compositions",
    "dtype_name",
    "enabled",
    "from_front",
    "inverse_mills",
    "is_float",
    "kernel",
    "kind_of",
    "lend_array",
    "lifted",
    "make_node",
    "make_zeros",
    "namesakes",
    "ops",
    "orderings",
    "over",
    "random",
    "rows_of",
    "scanning",
    "tile_shape",
    "unwritten",
    "zeros",
]

# Modules of rooms above this one, imported by name when an author asks for them, because this room
# may not import them.
ABOVE = {
    "compilers": "multigrad.rules.jit",
    "dialects": "multigrad.capture.dialects.dialect_api",
    "importers": "multigrad.functions.importer_api",
}


def __getattr__(name: str) -> Any:
    if name not in ABOVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(ABOVE[name])
