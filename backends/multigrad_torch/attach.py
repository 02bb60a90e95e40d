"""From a lowering to `torch.autograd.Function`.

Two classes. The old style (forward gets ctx) costs 13 to 17 us less per call and takes the params prepared, for
fast code; the style with `setup_context` works under torch.func and vmap. `apply` picks by asking whether a
transform is active.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd import Function, forward_ad

if TYPE_CHECKING:
    from multigrad.lowering.code import Code, Lowering
    from multigrad.lowering.emit import Body

Tensor: TypeAlias = torch.Tensor
transforms_active = torch._C._are_functorch_transforms_active
# The dispatch modes that are entered: one may record a graph, which may be differentiated later.
count_modes = torch._C._len_torch_dispatch_stack


def render(lowering: Lowering) -> str:
    """Return the source of both classes, the public one last."""
    f, name = lowering.forward, lowering.identifier
    draw = "        if key is None:\n            key = draw_key()\n" if lowering.draws else ""
    nones = ", None" * len(lowering.params)
    unpack = (
        f"        tin{lowering.arguments} = inputs\n"
        if lowering.params
        else "        (tin,) = inputs\n"
    )
    # setup_context may not save an input that is returned as it is, but may save beside a view of it.
    output = "tin.view_as(tin)" if f.result == "tin" else f.result
    if lowering.tangent is not None:
        # jvp may return no view of the tangent, so forward returns none of the input.
        output = "tin.clone()" if f.result == "tin" else f.result
        # torch calls jvp with forward mode off: a forward mode around it would get zeros in silence.
        inner = _indent(_load(lowering.params)) + lowering.tangent.indented(12)
        return f"""\
class {name}(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tin{lowering.signature}):
{f.indented(8)}        return {output}

    @staticmethod
    def setup_context(ctx, inputs, output):
{unpack}{draw}        ctx.save_for_backward(tin)
        ctx.save_for_forward(tin)
{_store(lowering.params)}
    @staticmethod
    def backward(ctx, grad_out):
        (tin,) = ctx.saved_tensors
{_load(lowering.params)}{lowering.backward.indented(8)}        return {lowering.grad_in}{nones}

    @staticmethod
    def jvp(ctx, tangent, *params):
        with enable_forward_mode(True):
            tin = unpack_dual(ctx.saved_tensors[0]).primal
{inner}            return {lowering.tangent.result}
"""
    read = lowering.read_params
    setup = f"{_keep(lowering, lowering.code)}{_store(read)}"
    setup = (unpack + draw + setup) if lowering.params or lowering.residuals else "        pass\n"
    eager = (
        _render_eager(lowering) if lowering.fast.prepared is None else _render_prepared(lowering)
    )
    return f"""\
{eager}

class {name}(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tin{lowering.signature}):
{f.indented(8)}        return {output}

    @staticmethod
    def setup_context(ctx, inputs, output):
{setup}
    @staticmethod
    def backward(ctx, grad_out):
{_load_residuals(lowering)}{_load(read)}{_run_anywhere(lowering, nones)}
    @classmethod
    def apply(cls, tin{lowering.signature}):
        if transforms_active() or count_modes() or type(tin) not in KINDS:
            return super().apply(tin{lowering.arguments})
{draw}        return {name}_eager.apply({_eager_arguments(lowering, "as_number")})
"""


def _render_eager(lowering: Lowering) -> str:
    """Return the class that takes the params one by one: a compiler reads it."""
    read, nones = lowering.read_params, ", None" * len(lowering.params)
    return f"""\
class {lowering.identifier}_eager(Function):
    @staticmethod
    def forward(ctx, tin{lowering.arguments}):
{_run_forward(lowering)}{_store(read)}        return output

    @staticmethod
    def backward(ctx, grad_out):
{_load_residuals(lowering)}{_load(read)}{_run_backward(lowering, nones)}"""


def _render_prepared(lowering: Lowering) -> str:
    """Return what prepares the params, and the class that takes them prepared, as one tuple."""
    name, prepared = lowering.identifier, lowering.fast.prepared
    assert prepared is not None
    names, expressions = _prepared(lowering)
    lines = "".join(f"    {line}\n" for line in prepared.lines)
    load = f"        {_tuple(names)} = values\n" if mentions(lowering.fast.keep, names) else ""
    head = store = unpack = nones = ""
    if names:
        head = f"""\
def {name}_prepare(wrap{lowering.arguments}):
{lines}    return {_tuple(expressions)}


"""
        nones = ", None"
        if lowering.read_params or mentions(lowering.fast.backward, names):
            store = "        ctx.values = values\n"
            unpack = f"        {_tuple(names)} = ctx.values\n"
    return f"""\
{head}class {name}_eager(Function):
    @staticmethod
    def forward(ctx, tin{", values" if names else ""}):
{load}{_run_forward(lowering)}{store}        return output

    @staticmethod
    def backward(ctx, grad_out):
{_load_residuals(lowering)}{unpack}{_run_backward(lowering, nones)}"""


def mentions(body: Body, names: list[str]) -> bool:
    """Return whether code mentions one of the names."""
    words = set(re.findall(r"\w+", " ".join((*body.lines, *body.results))))
    return not words.isdisjoint(names)


def _prepared(lowering: Lowering) -> tuple[list[str], list[str]]:
    """Return what the eager class gets: names, and the expressions that prepare them."""
    prepared = lowering.fast.prepared
    assert prepared is not None
    every = {**{name: name for name in lowering.read_params}, **prepared.names}
    return list(every), list(every.values())


def _eager_arguments(lowering: Lowering, wrap: str) -> str:
    """Return the arguments of the eager class where the params are known by name."""
    if lowering.fast.prepared is None:
        return f"tin{lowering.arguments}"
    if not _prepared(lowering)[0]:
        return "tin"
    return f"tin, {lowering.identifier}_prepare({wrap}{lowering.arguments})"


def _tuple(words: list[str]) -> str:
    """Return the source of a tuple."""
    return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"


def _store(params: tuple[str, ...]) -> str:
    return "".join(f"        ctx.{p} = {p}\n" for p in params)


def _load(params: tuple[str, ...]) -> str:
    return "".join(f"        {p} = ctx.{p}\n" for p in params)


def _indent(lines: str) -> str:
    return "".join(f"    {line}\n" for line in lines.splitlines())


def _load_residuals(lowering: Lowering) -> str:
    names = "".join(f"{name}, " for name in lowering.residuals)
    return f"        ({names.strip()}) = ctx.saved_tensors\n" if names else ""


def _run_forward(lowering: Lowering) -> str:
    """The eager class's forward: grad mode is off there, and no transform is active."""
    f = lowering.fast.forward
    keep = _keep(lowering, lowering.fast)
    if lowering.computed:  # for nothing where no gradient is asked for
        inner = "".join(f"    {line}\n" for line in keep.splitlines())
        keep = f"        if ctx.needs_input_grad[0]:\n{inner}"
    run = f"{f.indented(8)}        output = {f.result}\n"
    # Residuals first: the memory of their temporaries is then at hand for the output.
    needs_output = "output" in (*lowering.residuals, *lowering.fast.keep.reads)
    return f"{run}{keep}" if needs_output else f"{keep}{run}"


def _keep(lowering: Lowering, code: Code) -> str:
    """Compute the residuals and save them, where output is known."""
    if not lowering.residuals:
        return ""
    computed = iter(code.keep.results)
    kept = [next(computed) if r in lowering.computed else r for r in lowering.residuals]
    return f"{code.keep.indented(8)}        ctx.save_for_backward({', '.join(kept)})\n"


def _refuse(lowering: Lowering) -> str:
    """Refuse a derivative that what is kept would lose."""
    if not lowering.refuse:
        return ""
    return f"        if is_grad_enabled():\n            {lowering.refuse}()\n"


def _run_anywhere(lowering: Lowering, nones: str) -> str:
    """Return the gradient by code that may be differentiated and transformed."""
    plain = lowering.code.backward
    result = f"        return {lowering.checked(plain)}{nones}\n"
    return f"{_refuse(lowering)}{plain.indented(8)}{result}"


def _run_backward(lowering: Lowering, nones: str) -> str:
    """Return the gradient: by fast code, but where a derivative is taken of it or a transform is active."""
    plain, fast = lowering.code.backward, lowering.fast.backward
    refuse, anywhere = _refuse(lowering), _run_anywhere(lowering, nones)
    if (plain.lines, plain.results) == (fast.lines, fast.results):
        return anywhere
    anywhere = anywhere.removeprefix(refuse)
    inner = "".join(f"    {line}\n" for line in anywhere.splitlines())
    return (
        f"{refuse}        if {ANYWHERE}:\n{inner}"
        f"{fast.indented(8)}        return {lowering.checked(fast)}{nones}\n"
    )


def finish(namespace: dict[str, Any], lowering: Lowering) -> type[Function]:
    """Return the public class; its docstring says what it is."""
    native = namespace[lowering.identifier]
    native.__doc__ = f"{lowering.name}, as emitted by multigrad."
    native.eager = namespace.get(f"{lowering.identifier}_eager", native)
    native.prepare = namespace.get(f"{lowering.identifier}_prepare")
    native.is_prepared = lowering.fast.prepared is not None
    # Dynamo (torch 2.13) would take the forward's own derivative of it under torch.func transforms.
    torch._dynamo.allow_in_graph(native)
    return native


def as_number(value: Any) -> Any:
    """Leave a prepared number as it is."""
    return value


# `torch.autograd.grad(is_grads_batched=True)` maps by an older vmap, which is no functorch transform.
BATCHED = torch._C._parse_dispatch_key("VmapMode")

# Fast code mixes its operands with plain tensors and writes in place: other classes may allow neither.
KINDS = frozenset({Tensor, torch.nn.Parameter})
ANYWHERE = (
    "is_grad_enabled() or transforms_active() or is_included(BATCHED) or count_modes()"
    " or type(grad_out) is not Tensor"
)

NAMESPACE = {
    "as_number": as_number,
    "BATCHED": BATCHED,
    "Function": Function,
    "KINDS": KINDS,
    "Tensor": torch.Tensor,
    "count_modes": count_modes,
    "is_included": torch._C._dispatch_tls_is_dispatch_key_included,
    "enable_forward_mode": forward_ad._set_fwd_grad_enabled,
    "is_grad_enabled": torch.is_grad_enabled,
    "transforms_active": transforms_active,
    "unpack_dual": forward_ad.unpack_dual,
}


def saying_what_is_kept(native: Any, transformed: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs inside of transforms, which says so where torch.jit.trace keeps the rule."""
    name = native.__doc__.partition(",")[0]

    def run(tin: Tensor, *values: Any) -> Tensor:
        if tracing_state() is not None:
            warn_of_trace(f"{name} for the gradient")
        return transformed(tin, *values)

    return run


def warn_of_trace(kept: str) -> None:
    """Say what torch.jit.trace keeps; what the exporter of ONNX traces has no gradient."""
    if not torch.onnx.is_in_onnx_export():
        warnings.warn(
            f"torch.jit.trace keeps {kept}, whatever is in force where the trace runs. Trace once for each rule, "
            f"or use torch.compile, which follows `use`",
            torch.jit.TracerWarning,
            stacklevel=2,
        )


def call(native: Any, lowering: Lowering | None = None) -> Callable[..., Any]:
    """Return how the hot path calls the class: the C entry directly, unless a transform or torch.jit reads along."""
    eager, transformed = entries(native)
    transformed = saying_what_is_kept(native, transformed)
    prepare = native.prepare

    def apply(tin: Tensor, *values: Any) -> Tensor:
        anywhere = (
            type(tin) not in KINDS
            or transforms_active()
            or count_modes()
            or tracing_state() is not None
        )
        return (transformed if anywhere else eager)(tin, *values)

    def apply_prepared(tin: Tensor, *values: Any) -> Tensor:
        if (
            type(tin) not in KINDS
            or transforms_active()
            or count_modes()
            or tracing_state() is not None
        ):
            return transformed(tin, *values)
        return eager(tin, prepare(as_number, *values))

    def apply_alone(tin: Tensor, *values: Any) -> Tensor:
        anywhere = (
            type(tin) not in KINDS
            or transforms_active()
            or count_modes()
            or tracing_state() is not None
        )
        return transformed(tin, *values) if anywhere else eager(tin)

    if not native.is_prepared:
        return apply
    return apply_alone if prepare is None else apply_prepared


def bind(native: Any, x: Tensor, values: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
    """Return the same for fixed values of the params, and for tensors of the kind and dtype of x."""
    prepare = native.prepare
    if prepare is None or type(x) not in KINDS:
        apply = call(native)
        return partial(_apply_values, apply, values) if values else apply
    eager, transformed = entries(native)
    transformed = saying_what_is_kept(native, transformed)
    wrap = partial(as_tensor, x.dtype) if x.dtype in CONSTANT_DTYPES else as_number
    state: tuple[bool | None, Any] = (
        None,
        None,
    )  # whether for a processor, and what is prepared; one for all threads

    def apply_prepared(tin: Tensor) -> Tensor:
        nonlocal state
        if transforms_active() or count_modes() or tracing_state() is not None:
            return transformed(tin, *values)
        on_cpu, prepared = state
        if tin.is_cpu is not on_cpu:
            on_cpu = tin.is_cpu
            state = on_cpu, prepare(wrap if on_cpu else as_number, *values)
            prepared = state[1]
        return eager(tin, prepared)

    return apply_prepared


def _apply_values(apply: Callable[..., Tensor], values: tuple[Any, ...], tin: Tensor) -> Tensor:
    return apply(tin, *values)


# torch.jit.trace does not know constants in a tuple, nor ONNX the fast kernels.
tracing_state = torch._C._get_tracing_state
# In 16 bits torch computes with a number in float32; a tensor of the dtype would be rounded first.
CONSTANT_DTYPES = (torch.float32, torch.float64)


def as_tensor(dtype: torch.dtype, value: Any) -> Any:
    """Return a prepared number as a tensor without dimensions."""
    if isinstance(value, Tensor):
        return value
    constant = torch.tensor(value, dtype=dtype, device="cpu")
    return constant if type(constant) is Tensor else value  # a mode may make something else of it


def entries(native: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what runs outside of transforms, and inside."""
    if native.eager is native:  # with forward mode there is one class only
        return native.apply, native.apply
    # Function.apply looks for default arguments in Python first; its base is the C implementation.
    return super(Function, native.eager).apply, super(native, native).apply


def attach_native(
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Any, Tensor, Tensor, tuple[Any, ...]], Tensor],
    name: str,
) -> Callable[..., Any]:
    """Return `f(tin, values)` whose backward calls the user's own function on tensors."""

    class NativeRule(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(tin: Tensor, values: tuple[Any, ...]) -> Tensor:
            if tracing_state() is not None:
                warn_of_trace(f"rule {name!r} for the gradient")
            output = forward(tin)
            # setup_context may not save an input that is returned as it is.
            return tin.view_as(tin) if output is tin else output

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            tin, ctx.values = inputs
            ctx.save_for_backward(tin)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
            (tin,) = ctx.saved_tensors
            return backward(ctx, grad_outputs[0], tin, ctx.values), None

    NativeRule.__name__ = name
    return NativeRule.apply
