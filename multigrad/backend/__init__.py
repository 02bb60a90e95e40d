"""The public module for a backend's author, who need import nothing else of multigrad.

`Backend` and its groups say what a framework offers; `ops` are the rows of the op table; the rest
is what the functions in the groups are given, or return. `docs/backends.md` walks through one.

May import the rooms up to `graph`; docs/architecture.md has their order.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..graph.support.lazy_modules import lazy_names

# Modules that an author asks for by name. Some are of rooms above, which this one may not import.
MODULES = {
    "compilers": "multigrad.rules.jit",
    "dialects": "multigrad.capture.dialects.dialect_api",
    "importers": "multigrad.functions.importer_api",
    "ops": "multigrad.graph.ops",
    "random": "multigrad.graph.random",
}
# Keep both lists equal: the first is for type checkers, the second runs, and loads no more than an
# author's code names. See tests/graph/support/test_lazy_modules.py.
if TYPE_CHECKING:
    from ..errors import GradientError as GradientError
    from ..errors import MultigradError as MultigradError
    from ..errors import RuleError as RuleError
    from ..errors import RuleValueError as RuleValueError
    from ..errors import StaleTraceError as StaleTraceError
    from ..errors import UnsupportedOp as UnsupportedOp
    from ..graph import ops as ops
    from ..graph import random as random
    from ..graph.ir.graph import Graph as Graph
    from ..graph.ir.graph import Node as Node
    from ..graph.ir.graph import make_node as make_node
    from ..graph.ir.op import Op as Op
    from ..graph.ir.types import FLOATS as FLOATS
    from ..graph.ir.types import T as T
    from ..graph.ir.types import Type as Type
    from ..graph.ir.types import dtype_name as dtype_name
    from ..graph.ir.types import is_float as is_float
    from ..graph.ops.activations import SELU_ALPHA as SELU_ALPHA
    from ..graph.ops.activations import SELU_SCALE as SELU_SCALE
    from ..graph.ops.arrays.indexing import along as along
    from ..graph.ops.arrays.indexing import as_index as as_index
    from ..graph.ops.arrays.indexing import as_pairs as as_pairs
    from ..graph.ops.arrays.indexing import from_front as from_front
    from ..graph.ops.arrays.indexing import tile_shape as tile_shape
    from ..graph.ops.arrays.loops import scanning as scanning
    from ..graph.ops.arrays.products import as_matrix as as_matrix
    from ..graph.ops.arrays.reductions import over as over
    from ..graph.ops.numerics import as_numpy_dtype as as_numpy_dtype
    from ..graph.ops.special import MILLS_FROM as MILLS_FROM
    from ..graph.ops.special import inverse_mills as inverse_mills
    from ..graph.random import REPLAYED as REPLAYED
    from .contract import Autodiff as Autodiff
    from .contract import Backend as Backend
    from .contract import Casts as Casts
    from .contract import Compiler as Compiler
    from .contract import Draws as Draws
    from .contract import Group as Group
    from .contract import Kernels as Kernels
    from .contract import Ranks as Ranks
    from .contract import Reader as Reader
    from .contract import Tensors as Tensors
    from .contract import WeakTypes as WeakTypes
    from .contract import late as late
    from .differences import ALL as ALL
    from .differences import KINDS as KINDS
    from .differences import SIGN_OF_ZERO as SIGN_OF_ZERO
    from .differences import SIGNS_OF_VECTORS as SIGNS_OF_VECTORS
    from .differences import Difference as Difference
    from .differences import Differences as Differences
    from .differences import Mended as Mended
    from .differences import zeros as zeros
    from .emitted import Aliasing as Aliasing
    from .emitted import Attached as Attached
    from .emitted import Body as Body
    from .emitted import Checks as Checks
    from .emitted import Code as Code
    from .emitted import Derivative as Derivative
    from .emitted import Emitted as Emitted
    from .emitted import Made as Made
    from .emitted import Names as Names
    from .emitted import Origin as Origin
    from .emitted import Prepared as Prepared
    from .emitted import Residuals as Residuals
    from .features import Ejection as Ejection
    from .features import Exports as Exports
    from .features import Imports as Imports
    from .features import Interop as Interop
    from .features import Kept as Kept
    from .features import Models as Models
    from .features import Modes as Modes
    from .guest import Guest as Guest
    from .guest import Kind as Kind
    from .guest import Pull as Pull
    from .guest import SharedBuffer as SharedBuffer
    from .guest import borrow_array as borrow_array
    from .guest import kind_of as kind_of
    from .guest import lend_array as lend_array
    from .guest import make_zeros as make_zeros
    from .rows import FastKernels as FastKernels
    from .rows import Pattern as Pattern
    from .rows import compositions as compositions
    from .rows import enabled as enabled
    from .rows import kernel as kernel
    from .rows import lifted as lifted
    from .rows import namesakes as namesakes
    from .rows import orderings as orderings
    from .rows import rows_of as rows_of
    from .rows import unwritten as unwritten
else:
    _find, _list = lazy_names(
        __name__,
        {
            ".errors": (
                "GradientError", "MultigradError", "RuleError", "RuleValueError", "StaleTraceError",
                "UnsupportedOp",
            ),
            ".graph.ir.graph": ("Graph", "Node", "make_node"),
            ".graph.ir.op": ("Op",),
            ".graph.ir.types": ("FLOATS", "T", "Type", "dtype_name", "is_float"),
            ".graph.ops.activations": ("SELU_ALPHA", "SELU_SCALE"),
            ".graph.ops.arrays.indexing": (
                "along", "as_index", "as_pairs", "from_front", "tile_shape",
            ),
            ".graph.ops.arrays.loops": ("scanning",),
            ".graph.ops.arrays.products": ("as_matrix",),
            ".graph.ops.arrays.reductions": ("over",),
            ".graph.ops.numerics": ("as_numpy_dtype",),
            ".graph.ops.special": ("MILLS_FROM", "inverse_mills"),
            ".graph.random": ("REPLAYED",),
            "contract": (
                "Autodiff", "Backend", "Casts", "Compiler", "Draws", "Group", "Kernels", "Ranks",
                "Reader", "Tensors", "WeakTypes", "late",
            ),
            "differences": (
                "ALL", "KINDS", "SIGN_OF_ZERO", "SIGNS_OF_VECTORS", "Difference", "Differences",
                "Mended", "zeros",
            ),
            "emitted": (
                "Aliasing", "Attached", "Body", "Checks", "Code", "Derivative", "Emitted", "Made",
                "Names", "Origin", "Prepared", "Residuals",
            ),
            "features": ("Ejection", "Exports", "Imports", "Interop", "Kept", "Models", "Modes"),
            "guest": (
                "Guest", "Kind", "Pull", "SharedBuffer", "borrow_array", "kind_of", "lend_array",
                "make_zeros",
            ),
            "rows": (
                "FastKernels", "Pattern", "compositions", "enabled", "kernel", "lifted",
                "namesakes", "orderings", "rows_of", "unwritten",
            ),
        },
    )  # fmt: skip
    __all__ = ["ops", "random", *_list()]  # noqa: PLE0604

    def __getattr__(name: str) -> Any:
        return import_module(MODULES[name]) if name in MODULES else _find(name)

    def __dir__() -> list[str]:
        return __all__
