"""Answers about symbolic tensors: attributes, devices, layouts and assertions, and tensors like
them.

Answers that differ from call to call are facts: a tensor's device, whether it requires a gradient,
its dtype. No value shows how a tensor lies in memory, so a capture is made both ways and must
agree.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from multigrad.core import ops
from multigrad.core.ir.op import is_float
from multigrad.core.trace.source import AUTOCAST
from multigrad.core.trace.trace import NeedsConcrete, Value, dtype_name, is_symbolic_tensor
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.copies.stand_ins import refusing
from multigrad.engine.capture.dialect import CHANGES, SWITCHES
from multigrad.engine.capture.meanings import arrays
from multigrad.engine.capture.meanings.parts import shape_of
from multigrad.engine.capture.name_tables import handlers_by_name
from multigrad.engine.capture.symbols import KnownShape, SymbolicDevice, SymbolicShape, cast
from multigrad.engine.capture.values import attributes, methods
from multigrad.engine.capture.values.memory import replace_node
from multigrad.engine.trace.assertions import assume
from multigrad.engine.trace.code_trace import CodeTrace, place_of
from multigrad.engine.trace.tensor_questions import gradient_of, is_dense, refuse_other_layouts

from .types import TORCH

Tensor: TypeAlias = Any
SIZES = {"bool": 1, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4, "int64": 8, "float64": 8}

# --- attributes ----------------------------------------------------------------------------------


def lies_on(place: str) -> Callable[[Tensor], bool]:
    def ask(x: Tensor) -> bool:
        return place_of(x.trace) == place

    # Error messages name the attribute that was asked for.
    ask.__name__ = ask.__qualname__ = f"is_{place}"
    return ask


def never(x: Tensor) -> bool:
    """Return False: sparse, nested and quantized tensors are refused as arguments of a graph."""
    refuse_other_layouts(x)
    return False


def adjoint(x: Tensor) -> Tensor:
    """Return the transpose of a matrix; like torch, also of a 0-d tensor."""
    if x.ndim not in (0, 2):
        raise x.trace.error(f"uses .H of a tensor of {x.ndim} axes, which torch has of matrices")
    return xp.permute_dims(x)


def layout(x: Tensor) -> torch.layout:
    refuse_other_layouts(x)
    return torch.strided


def element_size(x: Tensor) -> int:
    name = dtype_name(x.node.type.dtype)
    if name not in SIZES:
        if "dtype" not in x.trace.facts:
            raise NeedsConcrete("dtype")
        name = x.trace.facts["dtype"]
    return SIZES[name]


ATTRIBUTES: dict[str, Callable[[Tensor], Any]] = {
    **{f"is_{place}": lies_on(place) for place in ("cpu", "cuda", "mps", "xpu")},
    **dict.fromkeys(("is_mkldnn", "is_nested", "is_quantized", "is_sparse"), never),
    "H": adjoint,
    "itemsize": element_size,
    "layout": layout,
    "mH": xp.matrix_transpose,
    "requires_grad": gradient_of,
}


# --- methods -------------------------------------------------------------------------------------


def is_contiguous(x: Tensor, memory_format: Any = torch.contiguous_format) -> bool:
    if memory_format is not torch.contiguous_format:
        raise TypeError("is_contiguous in a memory_format")
    return is_dense(x)


def is_complex(input: Tensor) -> bool:
    """Return False: arguments are checked, and no graph has complex numbers."""
    return False


def angle(input: Tensor) -> Tensor:
    """Return pi for negative numbers, else 0; for -0 as well, as NumPy does."""
    angles = xp.where(xp.less(input, 0), math.pi, 0.0)
    return xp.where(xp.isnan(input), input, angles) if is_float(input.node.type) else angles


def get_device(x: Tensor) -> int:
    if place_of(x.trace) != "cpu":
        raise TypeError("get_device on an accelerator")
    return -1


def moved(place: str, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the tensor itself if it is on that device already; refuse to move it."""
    if place_of(x.trace) != place or args or kwargs.get("device") is not None:
        raise TypeError(f"it moves a tensor from {place_of(x.trace)} to {place}")
    return x


cpu, cuda = partial(moved, "cpu"), partial(moved, "cuda")
cpu.__name__, cuda.__name__ = "cpu", "cuda"  # type: ignore[attr-defined]


def to(x: Tensor, *args: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
    """Change the dtype; another device is refused."""
    dtype_sources = []
    for target in (*args, device):
        if isinstance(target, torch.device | str | torch.Tensor):
            moved(torch.device(getattr(target, "device", target)).type, x)
        if isinstance(target, torch.device | str):
            continue
        if isinstance(target, int) and not isinstance(target, bool):
            raise TypeError(f"it moves a tensor to device {target}")
        if target is not None and not isinstance(target, SymbolicDevice):
            dtype_sources.append(target)
    return methods.to(x, *dtype_sources, dtype=dtype, **options)


def type_(x: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Cast, also to torch's legacy types of tensors: `torch.FloatTensor` or its name."""
    if dtype is None:
        if "dtype" not in x.trace.facts:
            raise NeedsConcrete("dtype")
        place = place_of(x.trace)
        root = "torch." if place == "cpu" else f"torch.{place}."
        return torch.empty(0, dtype=x.dtype).type().replace("torch.", root)
    name = f"{dtype.__module__}.{dtype.__name__}" if isinstance(dtype, type) else dtype
    if isinstance(name, str) and name.endswith("Tensor") and name.startswith("torch."):
        root, _, kind = name.rpartition(".")
        if (root == "torch") is not (place_of(x.trace) == "cpu"):
            raise TypeError(f"it moves a tensor from {place_of(x.trace)} by type({name})")
        if not hasattr(torch, kind):
            raise TypeError(f"type({name})")
        return cast(x, getattr(torch, kind).dtype)
    return cast(x, dtype)


def new(x: Tensor, *args: Any, device: Any = None) -> Tensor:
    """Return a tensor of a size, whose values are not set, or of given numbers."""
    if not args:
        return methods.new_full(x, [0], 0.0)
    (argument, *other_args) = args
    if is_symbolic_tensor(argument) and not other_args:
        return arrays.renamed(argument)
    if isinstance(argument, SymbolicShape | KnownShape | torch.Size) and not other_args:
        return methods.new_full(x, argument, 0.0)
    if isinstance(argument, int | Value) and not is_symbolic_tensor(argument):
        return methods.new_full(x, [argument, *other_args], 0.0)
    if other_args or is_symbolic_tensor(argument):
        raise TypeError("new with other values than a size or numbers")
    return methods.new_tensor(x, argument)


def resize_(x: Tensor, *sizes: Any, memory_format: Any = None) -> Tensor:
    """Resize a tensor without elements; the values of the new ones are not set."""
    template = methods.new_full(x, sizes[0] if len(sizes) == 1 else sizes, 0.0)
    return _given_room(x, template)


def resize_as_(x: Tensor, the_template: Tensor, *, memory_format: Any = None) -> Tensor:
    return _given_room(x, xp.zeros_like(the_template, x.dtype))


def _given_room(x: Tensor, template: Tensor) -> Tensor:
    shape = shape_of(x)
    if shape == shape_of(template):
        return x
    # Elements that exist, or views of them, would have to keep their memory.
    if shape != (0,) or x.base is not None or x.views or x.node.op is ops.INPUT:
        raise TypeError("it resizes a tensor that has elements")
    replace_node(x, template.node)
    return x


def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    """Remove those of the given axes whose length is 1, as torch does; others stay."""
    if dim is None:
        return xp.squeeze(x)
    dims = [operator.index(i) for i in (dim if isinstance(dim, tuple | list) else (dim,))]
    shape = x.node.type.shape
    if isinstance(shape, tuple) and shape[-1] is True and shape[1] in (dim, None):
        return xp.squeeze(x, dim)  # a reduction has kept just these
    lengths = shape_of(x)
    unit_axes = tuple(i % len(lengths) for i in dims if lengths and lengths[i] == 1)
    return xp.squeeze(x, unit_axes) if unit_axes else arrays.renamed(x)


def expand(x: Tensor, *sizes: Any) -> Tensor:
    """Expand a tensor; -1 keeps a length."""
    target = arrays.numbers(sizes)
    if isinstance(target, SymbolicShape):
        return arrays.expand(x, target)
    lengths = [-1 if isinstance(n, int) and n == -1 else n for n in target]
    if -1 in [n for n in lengths if isinstance(n, int)]:
        shape = shape_of(x)
        extra = len(lengths) - len(shape)
        if any(isinstance(n, int) and n == -1 for n in lengths[: max(extra, 0)]):
            raise TypeError("expand keeps no length of an axis that is not there")
        lengths = [
            shape[i - extra] if isinstance(n, int) and n == -1 else n for i, n in enumerate(lengths)
        ]
    return arrays.expand(x, *lengths)


# Questions whether a tensor is wrapped by vmap or grad.
TRANSFORMED = [
    getattr(torch._C._functorch, name)
    for name in ("is_batchedtensor", "is_gradtrackingtensor", "is_legacy_batchedtensor")
    if hasattr(torch._C._functorch, name)
]


def is_transformed(tensor: Tensor) -> bool:
    return False


def is_grad_enabled(trace: CodeTrace) -> bool:
    """Return whether gradients are enabled in torch itself, as they are while a class runs."""
    for_classes(trace, torch.is_grad_enabled, CHANGES)
    # A backward is recorded only for second derivatives, so the capture is for the first one.
    trace.backward.is_once |= trace.backward.is_running
    return torch.is_grad_enabled()


def is_autocast_enabled(trace: CodeTrace, device_type: str = "") -> bool:
    """Return False, as outside autocast; under it the class itself runs."""
    for_classes(trace, torch.is_autocast_enabled, CHANGES)
    trace.omit(AUTOCAST)
    return False


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """The state of the generator in a capture: how much was drawn so far."""

    draws: int


def get_rng_state(trace: CodeTrace) -> GeneratorState:
    for_classes(trace, torch.get_rng_state, CHANGES)
    return GeneratorState(trace.draws)


def set_rng_state(trace: CodeTrace, new_state: Any) -> None:
    """Accept the present state, which a checkpoint sets although its function may draw nothing."""
    if not isinstance(new_state, GeneratorState):
        refusing(torch.set_rng_state, SWITCHES, trace, "torch.set_rng_state")()
    if new_state.draws != trace.draws:
        raise trace.error(
            "draws, sets the generator back, and draws the same numbers again, which a graph does "
            f"not do{trace.words.advise('keep what was drawn')}"
        )


def for_classes(trace: CodeTrace, function: Callable[..., Any], reason: str) -> None:
    """Refuse a question about torch's state, except in a class, which has a state of its own."""
    if trace.kind != "imported function":
        refusing(function, reason, trace, f"torch.{function.__name__}")()


# --- what torch's code, its own distributions too, asserts of a tensor ----------------------------
def _assert(condition: Any, message: Any = "") -> None:
    if isinstance(condition, Value):
        assume(condition)


def _assert_async(x: Tensor, assert_msg: str = "") -> None:
    assume(x)


def _check(cond: Any, message: Any = None) -> None:
    # `bool` of a number about lengths makes it a fact.
    is_number = isinstance(cond, Value) and cond.node.type.kind == "scalar"
    torch._check(bool(cond) if is_number else cond, message)


METHODS: dict[str, Callable[..., Any]] = {
    **handlers_by_name(
        {
            __name__: """
                angle; cpu; cuda; element_size; expand; get_device; is_complex: is_complex is_conj
                is_neg; is_contiguous; new; resize_; resize_as_; squeeze; to; type_: type
            """,
            methods: "dim: ndimension; identity: conj_physical resolve_conj resolve_neg",
        }
    ),
    "_is_all_true": xp.all,
    "_is_any_true": xp.any,
    "nelement": methods.METHODS["numel"],
}
ALIASES: dict[Any, Callable[..., Any]] = {
    torch.squeeze: squeeze,
    **TORCH.taking_the_same(
        {
            __name__: "angle; is_complex: is_complex is_conj is_neg",
            methods: "identity: conj conj_physical real resolve_conj resolve_neg",
        }
    ),
}
HIDDEN: dict[Any, Callable[..., Any]] = {torch._check: _check}
# Not in the tables of the docs: functions that only torch's own code calls.
PRIVATE: dict[Any, Callable[..., Any]] = {
    torch._assert: _assert,
    torch._assert_async: _assert_async,
    torch._is_all_true: xp.all,
    torch._is_any_true: xp.any,
    torch.Tensor._is_all_true: xp.all,
    torch.Tensor._is_any_true: xp.any,
}


# --- attributes that no symbol answers, and why ---------------------------------------------------
AUTOGRAD = "which is autograd's; a rule's tensors carry no gradient of their own"
QUANTIZED = "which is of quantized tensors"
SPARSE = "which is of sparse tensors"
DRAWS = "which draws from a distribution that is not captured; use xp.rand_like or xp.randn_like"
INTEGERS = "which casts to or computes in integers in a way not captured"

# By reason, the attributes that are refused for it; `*` stands for any name.
REASONS = {
    attributes.PRIVATE: """
        _* __div__ __idiv__ __rdiv__ __long__ __nonzero__ __torch_dispatch__ reinforce volatile
        module_load const_data_ptr
    """,
    attributes.INDICES: """
        bincount histc histogram index_reduce index_reduce_ mode slice_inverse
    """,
    attributes.VALUES: """
        argwhere is_nonzero masked_scatter_ nonzero nonzero_static unique
        unique_consecutive hash_tensor
    """,
    attributes.PARTS: "as_strided* resize resize_ resize_as resize_as_",
    attributes.COMPLEX: """
        cdouble cfloat chalf imag istft stft
    """,
    INTEGERS: "gcd gcd_ int_repr lcm lcm_ random_",
    attributes.MEMORY: """
        as_subclass cpu cuda data_ptr dim_order element_size get_device ipu is_contiguous is_cpu
        is_cuda is_distributed is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_pinned
        is_same_size is_set_to is_shared is_vulkan is_xla is_xpu itemsize layout mtia name names
        rename rename_ align_* has_names refine_names nbytes ndimension nelement new
        new_empty_strided pin_memory record_stream set_ share_memory_ storage storage_* stride
        to_mkldnn untyped_storage xpu hpu is_hpu is_maia
    """,
    AUTOGRAD: """
        grad grad_dtype grad_fn is_inference is_leaf output_nr register_* requires_grad retain_grad
        retains_grad
    """,
    QUANTIZED: "dequantize is_quantized q_* qscheme is_signed",
    SPARSE: """
        ccol_indices coalesce col_indices crow_indices dense_dim indices is_coalesced is_nested
        is_sparse is_sparse_csr resize_as_sparse_ row_indices sparse_* to_dense to_padded_tensor
        to_sparse to_sparse_* values
    """,
    DRAWS: "cauchy_ exponential_ geometric_ log_normal_ multinomial",
    attributes.NUMBERS: "apply_ map_ map2_",
}
REFUSALS = attributes.refusals(REASONS)
