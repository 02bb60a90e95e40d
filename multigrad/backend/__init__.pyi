# ruff: noqa: I001
# fmt: off
# What each name of this module is, and the file that has it: for type checkers, and for
# `__init__.py`, which reads this file.

from typing import Any

from ..core import ops as ops
from ..core.backend.contract import (
    Autodiff as Autodiff, Backend as Backend, Casts as Casts, Compiler as Compiler,
    Draws as Draws, Kernels as Kernels, Reader as Reader, Tensors as Tensors,
    WeakTypes as WeakTypes, late as late,
)
from ..core.backend.emitted import (
    Aliasing as Aliasing, Attached as Attached, Body as Body, Checks as Checks, Code as Code,
    Derivative as Derivative, Emitted as Emitted, Made as Made, Names as Names, Origin as Origin,
    Prepared as Prepared, Residuals as Residuals, tuple_of as tuple_of,
)
from ..core.backend.rows import (
    FastKernels as FastKernels, Pattern as Pattern, enabled as enabled, kernel as kernel,
    rows_of as rows_of,
)
from ..core.ir.graph import Graph as Graph, Node as Node, make_node as make_node
from ..core.ir.op import (
    FLOATS as FLOATS, Op as Op, T as T, Type as Type, dtype_name as dtype_name,
    is_float as is_float,
)
from ..core.ops.numerics import as_numpy_dtype as as_numpy_dtype
from ..core.ops.reductions import over as over
from ..engine import random as random
from ..engine.backend.array_rows import (
    compositions as compositions, lifted as lifted, namesakes as namesakes,
    orderings as orderings, unwritten as unwritten,
)
from ..engine.backend.differences import (
    ALL as ALL, KINDS as KINDS, SIGN_OF_ZERO as SIGN_OF_ZERO,
    SIGNS_OF_VECTORS as SIGNS_OF_VECTORS, Difference as Difference, Differences as Differences,
    Mended as Mended, zeros as zeros,
)
from ..engine.backend.features import (
    Ejection as Ejection, Exports as Exports, Group as Group, Imports as Imports,
    Interop as Interop, Kept as Kept, Models as Models, Modes as Modes, Ranks as Ranks,
)
from ..engine.backend.guest import (
    Guest as Guest, Kind as Kind, Pull as Pull, SharedBuffer as SharedBuffer,
    borrow_array as borrow_array, kind_of as kind_of, lend_array as lend_array,
    make_zeros as make_zeros,
)
from ..engine.ops.elementary import MILLS_FROM as MILLS_FROM, inverse_mills as inverse_mills
from ..engine.ops.indexing import (
    along as along, as_index as as_index, as_pairs as as_pairs, from_front as from_front,
    tile_shape as tile_shape,
)
from ..engine.ops.loops import scanning as scanning
from ..engine.ops.products import as_matrix as as_matrix
from ..engine.ops.units import SELU_ALPHA as SELU_ALPHA, SELU_SCALE as SELU_SCALE
from ..engine.random import REPLAYED as REPLAYED
from ..errors import (
    GradientError as GradientError, MultigradError as MultigradError, RuleError as RuleError,
    RuleValueError as RuleValueError, StaleTraceError as StaleTraceError,
    UnsupportedOp as UnsupportedOp,
)

def __getattr__(name: str) -> Any: ...  # `MODULES`
