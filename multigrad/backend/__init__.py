"""The public module for a backend's author, who need import nothing else of multigrad.

`Backend` and its groups say what a framework offers; `ops` are the rows of the op table; the rest
is what the functions in the groups are given, or return. `docs/backends.md` walks through one.

May import the rooms up to `graph`; docs/architecture.md has their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.support.lazy_modules import missing_name_error
from ..core.support.threads import load_module

# Modules that an author asks for by name. Some are of rooms above, which this one may not import.
MODULES = {
    "compilers": "multigrad.engine.rules.jit",
    "dialects": "multigrad.engine.capture.dialects.dialect_api",
    "importers": "multigrad.engine.functions.code_recipes",
    "ops": "multigrad.core.ops",
    "random": "multigrad.engine.random",
}


def _places(root: str, names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {name: f"{root}{file}" for file, file_names in names.items() for name in file_names}


# Keep both lists equal: the first is for type checkers, the second runs, and loads no more than an
# author's code names. See tests/graph/support/test_lazy_modules.py.
if TYPE_CHECKING:
    from ..core import ops as ops
    from ..core.backend.contract import Autodiff as Autodiff
    from ..core.backend.contract import Backend as Backend
    from ..core.backend.contract import Casts as Casts
    from ..core.backend.contract import Compiler as Compiler
    from ..core.backend.contract import Draws as Draws
    from ..core.backend.contract import Kernels as Kernels
    from ..core.backend.contract import Reader as Reader
    from ..core.backend.contract import Tensors as Tensors
    from ..core.backend.contract import WeakTypes as WeakTypes
    from ..core.backend.contract import late as late
    from ..core.backend.emitted import Aliasing as Aliasing
    from ..core.backend.emitted import Attached as Attached
    from ..core.backend.emitted import Body as Body
    from ..core.backend.emitted import Checks as Checks
    from ..core.backend.emitted import Code as Code
    from ..core.backend.emitted import Derivative as Derivative
    from ..core.backend.emitted import Emitted as Emitted
    from ..core.backend.emitted import Made as Made
    from ..core.backend.emitted import Names as Names
    from ..core.backend.emitted import Origin as Origin
    from ..core.backend.emitted import Prepared as Prepared
    from ..core.backend.emitted import Residuals as Residuals
    from ..core.backend.emitted import tuple_of as tuple_of
    from ..core.backend.rows import FastKernels as FastKernels
    from ..core.backend.rows import Pattern as Pattern
    from ..core.backend.rows import enabled as enabled
    from ..core.backend.rows import kernel as kernel
    from ..core.backend.rows import rows_of as rows_of
    from ..core.ir.graph import Graph as Graph
    from ..core.ir.graph import Node as Node
    from ..core.ir.graph import make_node as make_node
    from ..core.ir.op import FLOATS as FLOATS
    from ..core.ir.op import Op as Op
    from ..core.ir.op import T as T
    from ..core.ir.op import Type as Type
    from ..core.ir.op import dtype_name as dtype_name
    from ..core.ir.op import is_float as is_float
    from ..core.ops.numerics import as_numpy_dtype as as_numpy_dtype
    from ..core.ops.reductions import over as over
    from ..engine import random as random
    from ..engine.backend.array_rows import compositions as compositions
    from ..engine.backend.array_rows import lifted as lifted
    from ..engine.backend.array_rows import namesakes as namesakes
    from ..engine.backend.array_rows import orderings as orderings
    from ..engine.backend.array_rows import unwritten as unwritten
    from ..engine.backend.differences import ALL as ALL
    from ..engine.backend.differences import KINDS as KINDS
    from ..engine.backend.differences import SIGN_OF_ZERO as SIGN_OF_ZERO
    from ..engine.backend.differences import SIGNS_OF_VECTORS as SIGNS_OF_VECTORS
    from ..engine.backend.differences import Difference as Difference
    from ..engine.backend.differences import Differences as Differences
    from ..engine.backend.differences import Mended as Mended
    from ..engine.backend.differences import zeros as zeros
    from ..engine.backend.features import Ejection as Ejection
    from ..engine.backend.features import Exports as Exports
    from ..engine.backend.features import Group as Group
    from ..engine.backend.features import Imports as Imports
    from ..engine.backend.features import Interop as Interop
    from ..engine.backend.features import Kept as Kept
    from ..engine.backend.features import Models as Models
    from ..engine.backend.features import Modes as Modes
    from ..engine.backend.features import Ranks as Ranks
    from ..engine.backend.guest import Guest as Guest
    from ..engine.backend.guest import Kind as Kind
    from ..engine.backend.guest import Pull as Pull
    from ..engine.backend.guest import SharedBuffer as SharedBuffer
    from ..engine.backend.guest import borrow_array as borrow_array
    from ..engine.backend.guest import kind_of as kind_of
    from ..engine.backend.guest import lend_array as lend_array
    from ..engine.backend.guest import make_zeros as make_zeros
    from ..engine.ops.elementary import MILLS_FROM as MILLS_FROM
    from ..engine.ops.elementary import inverse_mills as inverse_mills
    from ..engine.ops.indexing import along as along
    from ..engine.ops.indexing import as_index as as_index
    from ..engine.ops.indexing import as_pairs as as_pairs
    from ..engine.ops.indexing import from_front as from_front
    from ..engine.ops.indexing import tile_shape as tile_shape
    from ..engine.ops.loops import scanning as scanning
    from ..engine.ops.products import as_matrix as as_matrix
    from ..engine.ops.units import SELU_ALPHA as SELU_ALPHA
    from ..engine.ops.units import SELU_SCALE as SELU_SCALE
    from ..engine.random import REPLAYED as REPLAYED
    from ..errors import GradientError as GradientError
    from ..errors import MultigradError as MultigradError
    from ..errors import RuleError as RuleError
    from ..errors import RuleValueError as RuleValueError
    from ..errors import StaleTraceError as StaleTraceError
    from ..errors import UnsupportedOp as UnsupportedOp

    def __getattr__(name: str) -> Any: ...  # `MODULES`

else:
    FILES = _places(
        "multigrad",
        {
            ".errors": (
                "GradientError", "MultigradError", "RuleError", "RuleValueError", "StaleTraceError",
                "UnsupportedOp",
            ),
            ".core.ir.graph": ("Graph", "Node", "make_node"),
            ".core.ir.op": ("FLOATS", "Op", "T", "Type", "dtype_name", "is_float"),
            ".engine.ops.indexing": (
                "along", "as_index", "as_pairs", "from_front", "tile_shape",
            ),
            ".engine.ops.loops": ("scanning",),
            ".engine.ops.products": ("as_matrix",),
            ".engine.ops.elementary": ("MILLS_FROM", "inverse_mills"),
            ".engine.ops.units": ("SELU_ALPHA", "SELU_SCALE"),
            ".core.ops.reductions": ("over",),
            ".core.ops.numerics": ("as_numpy_dtype",),
            ".engine.random": ("REPLAYED",),
            ".core.backend.contract": (
                "Autodiff", "Backend", "Casts", "Compiler", "Draws", "Kernels", "Reader", "Tensors",
                "WeakTypes", "late",
            ),
            ".engine.backend.differences": (
                "ALL", "KINDS", "SIGN_OF_ZERO", "SIGNS_OF_VECTORS", "Difference", "Differences",
                "Mended", "zeros",
            ),
            ".core.backend.emitted": (
                "Aliasing", "Attached", "Body", "Checks", "Code", "Derivative", "Emitted", "Made",
                "Names", "Origin", "Prepared", "Residuals", "tuple_of",
            ),
            ".engine.backend.features": (
                "Ejection", "Exports", "Group", "Imports", "Interop", "Kept", "Models", "Modes",
                "Ranks",
            ),
            ".engine.backend.guest": (
                "Guest", "Kind", "Pull", "SharedBuffer", "borrow_array", "kind_of", "lend_array",
                "make_zeros",
            ),
            ".core.backend.rows": ("FastKernels", "Pattern", "enabled", "kernel", "rows_of"),
            ".engine.backend.array_rows": (
                "compositions", "lifted", "namesakes", "orderings", "unwritten",
            ),
        },
    )  # fmt: skip
    __all__ = ["ops", "random", *sorted(FILES)]  # noqa: PLE0604

    def __getattr__(name: str) -> Any:
        if name in MODULES:
            return import_module(MODULES[name])
        if name not in FILES:
            raise missing_name_error(__name__, name, sorted(FILES))
        # Later look-ups find the value in the module.
        value = globals()[name] = getattr(load_module(FILES[name]), name)
        return value

    def __dir__() -> list[str]:
        return __all__
