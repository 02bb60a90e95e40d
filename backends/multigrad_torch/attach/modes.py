"""How a function runs under every mode, for an audit, and under none, for a proof."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from multigrad.backend import GradientError, Kept
from multigrad.backend.values import run_on_tensors_alone
from multigrad.capture.meanings import composites
from multigrad.graph.random import REPLAYED

from ..compile.checkpoint_regions import as_it_is, top_hooks
from ..dialect.table import ALIASES
from ..state import KINDS, is_memory, without_autocast, without_modes
from .vjp import list_nodes, vjp

# --- under forward mode, vmap, checkpoints or autocast --------------------------------------------
Tensor: TypeAlias = torch.Tensor
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]
Pull: TypeAlias = Callable[[Sequence[Any]], list[Tensor | None]]


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Tensor | None]]:
    with forward_ad.dual_level():
        dual = [
            x if tangent is None else forward_ad.make_dual(x, tangent)
            for x, tangent in zip(inputs, tangents, strict=True)
        ]
        parts = [forward_ad.unpack_dual(y) for y in run(dual)]
    return [part.primal for part in parts], [part.tangent for part in parts]


def checkpointed(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """Return the outputs and the pullback, as `vjp` does, of the function under a checkpoint."""

    def recomputed(tensors: Sequence[Tensor]) -> list[Any]:
        return checkpoint(lambda *given: run(given), *tensors, use_reentrant=False)

    return vjp(recomputed, inputs)


def mapped(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """Return the outputs and the pullback, as `vjp` does, of the function under vmap."""

    def of_each(tensors: Sequence[Tensor]) -> list[Any]:
        return run_on_tensors_alone(torch.func.vmap, run, tensors, torch.is_tensor)

    return vjp(of_each, inputs)


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamo limits how often it compiles one code object; the reset starts that count again.
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def reentrant(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """Return outputs and pullback under a reentrant checkpoint: only leaves get gradients."""
    xs = [_leaf(x) for x in inputs]
    with torch.enable_grad():
        outputs = list(checkpoint(lambda *given: tuple(run(given)), *xs, use_reentrant=True))
    active = [i for i, y in enumerate(outputs) if isinstance(y, Tensor) and y.requires_grad]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        for x in xs:
            # `backward` adds to what the previous call has left.
            x.grad = None
        if active:
            heads = [
                torch.zeros_like(outputs[i]) if cotangents[i] is None else cotangents[i]
                for i in active
            ]
            torch.autograd.backward([outputs[i] for i in active], heads, retain_graph=True)
        return [torch.zeros_like(x) if x.grad is None and x.requires_grad else x.grad for x in xs]

    return [y.detach() if isinstance(y, Tensor) else y for y in outputs], pullback


def autocast(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """Return outputs and pullback with only forward under autocast, as in a training step."""
    device = torch.get_default_device().type
    nodes: list[Any] = []

    def cast(tensors: Sequence[Tensor]) -> list[Any]:
        with torch.autocast(device, torch.bfloat16):
            outputs = run(tensors)
        # Read while `outputs` still lead to them: `vjp` detaches what it returns.
        nodes[:] = custom_nodes(outputs)
        for node in nodes:
            wanted = _device_asked(node._forward_cls.forward)
            if wanted not in ("", device):
                raise NotImplementedError(
                    f"its custom_fwd is for the autocast of {wanted}, and it runs on {device}"
                )
        return outputs

    outputs, pull = vjp(cast, inputs)

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        try:
            return pull(cotangents)
        except Exception as error:
            if not any(_device_asked(node._forward_cls.forward) for node in nodes):
                raise
            raise GradientError(
                "its custom_fwd says that it takes autocast, and its backward raises "
                f"{type(error).__name__}: {error}"
            ) from error

    return outputs, pullback


def _device_asked(forward: Any) -> str:
    while forward is not None:
        # torch's `custom_fwd` keeps its device only in the closure of `decorate_fwd`.
        code = getattr(forward, "__code__", None)
        if code is not None and code.co_name == "decorate_fwd":
            return str(inspect.getclosurevars(forward).nonlocals["device_type"])
        forward = getattr(forward, "__wrapped__", None)
    return ""


# --- what is kept ---------------------------------------------------------------------------------
def custom_nodes(outputs: Sequence[Any]) -> list[Any]:
    """Return the nodes of custom classes among those that lead to outputs."""
    return [node for node in list_nodes(outputs) if hasattr(node, "_forward_cls")]


def kept(run: Run, inputs: Sequence[Tensor], cotangents: Callable[..., Any]) -> list[Kept]:
    """Return the tensors that custom classes keep: saved tensors and tensor attributes of ctx.

    A tensor counts as read if an op reads it, if it is saved again or returned, or if another
    tensor instead of it changes a gradient, as with kernels that torch cannot see.
    """
    watch = Watch()
    leaves = [_leaf(x) for x in inputs]
    wrt = [x for x in leaves if x.requires_grad]
    with torch.enable_grad(), watch.hooks():
        outputs = run(leaves)
    active = [y for y in outputs if isinstance(y, Tensor) and y.requires_grad]
    nodes = custom_nodes(active)
    tensors = [each for node in nodes for each in (*_saved(node, watch), *_attributes(node))]
    if not tensors:
        return []
    heads = cotangents(active)
    # A backward that calls a custom class keeps tensors only if a gradient is asked for.
    tracked = [_leaf(g) for g in heads]

    def pull(is_further: bool = False) -> list[Tensor | None]:
        return list(
            torch.autograd.grad(
                active,
                wrt,
                tracked if is_further else heads,
                retain_graph=True,
                create_graph=is_further,
                allow_unused=True,
            )
        )

    gradients = pull()
    _watch_reads(pull, nodes, watch)
    rows = []
    for each in tensors:
        is_read = each.is_surely_read or any(_place(x) in watch.read for x in each.readers)
        is_read = is_read or _changes(each, pull, gradients)
        rows.append(Kept(each.where, _size(each.tensor), is_read, _apart(each, watch)))
    return rows


class Watch:
    """What the hooks of saved tensors have seen."""

    def __init__(self) -> None:
        self.read: set[int] = set()
        self.without: dict[Any, list[bool]] = {}  # by node: which arguments get no gradient
        self.unpacked: list[KeptTensor] = []

    def hooks(self) -> Any:
        def pack(x: Tensor) -> KeptTensor:
            # Saving a tensor again, in a backward, counts as reading it.
            self.read.add(_place(x))
            return KeptTensor(x)

        def unpack(saved: KeptTensor) -> Tensor:
            self.unpacked.append(saved)
            return saved.unpack()

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


class KeptTensor:
    """A tensor that a class has saved, or one in an attribute of ctx, whose name it has.

    Attributes:
        readers: what its readers got: another copy each of a saved one.
        other: what they get instead, to find out whether it matters.
    """

    def __init__(self, tensor: Tensor, where: str = "", node: Any = None, name: str = "") -> None:
        self.tensor, self.where, self.node, self.name = tensor, where, node, name
        # Kept alive, as freed memory is used again and `read` compares addresses.
        self.readers: list[Tensor] = [] if node is None else [tensor]
        self.other: Tensor | None = None

    @property
    def is_surely_read(self) -> bool:
        """Whether a jvp may read it, or a container has it, in which it cannot be replaced."""
        if self.node is None:
            return False
        offers_jvp = self.node._forward_cls.jvp is not torch.autograd.Function.jvp
        return offers_jvp or getattr(self.node, self.name) is not self.tensor

    def unpack(self) -> Tensor:
        if self.other is not None:
            return self.other
        self.readers.append(self.tensor.detach().clone())
        return self.readers[-1]

    def replace(self, other: Tensor | None) -> None:
        self.other = other
        if self.node is not None:
            setattr(self.node, self.name, self.tensor if other is None else other)


def _saved(node: Any, watch: Watch) -> Iterator[KeptTensor]:
    # Reading `saved_tensors` calls the unpack hook once for each of them, in order.
    watch.unpacked.clear()
    names = [n for n, x in enumerate(node.saved_tensors) if x is not None]
    for n, saved in zip(names, list(watch.unpacked), strict=True):
        saved.where = f"saved tensor {n} of {_shown(node, saved.tensor)}"
        yield saved


def _attributes(node: Any) -> Iterator[KeptTensor]:
    for name, value in list(vars(node).items()):
        for x in tree_leaves(value):
            if isinstance(x, Tensor):
                yield KeptTensor(x, f"ctx.{name} of {_shown(node, x)}", node, name)


def _shown(node: Any, x: Tensor) -> str:
    return f"{node._forward_cls.__name__}, {str(x.dtype).partition('.')[2]}{list(x.shape)}"


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_(x.is_floating_point())


def _place(x: Tensor) -> int:
    # A view has the address of what it views.
    return x.untyped_storage().data_ptr() if x.layout is torch.strided else 0


def _size(x: Tensor) -> int:
    return x.nbytes if x.layout is torch.strided else x.element_size() * x._nnz()


def _apart(each: KeptTensor, watch: Watch) -> str:
    # Within forward only an output, or an input that has a gradient, requires grad.
    x = each.tensor
    if each.node is None or not x.requires_grad:
        return ""
    if x.grad_fn is each.node:
        return "output"
    edges = zip(each.node.next_functions, watch.without.get(each.node, []), strict=False)
    for (further, number), is_without in edges:
        is_own = getattr(further, "variable", None) is x if x.is_leaf else further is x.grad_fn
        if is_own and number == x.output_nr and is_without:
            return ""  # a number, which became a tensor for this trial
    return "input"


class Reads(TorchDispatchMode):
    """Notes the memory that ops read. Reading only a shape does not count."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = op.__name__.partition(".")[0]
        is_like = name.endswith("_like") or name.startswith("new_") or name == "detach"
        if not op.is_view and not is_like:
            operands = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
            self.watch.read.update(map(_place, operands))
        return op(*args, **kwargs)


def _watch_reads(pull: Callable[..., Any], nodes: Sequence[Any], watch: Watch) -> None:
    def note_of(node: Any) -> Callable[[Any, Any], None]:
        def note(gradients: Any, _: Any) -> None:
            watch.read.update(_place(g) for g in gradients if g is not None)
            watch.without[node] = [g is None for g in gradients]

        return note

    hooks = [node.register_hook(note_of(node)) for node in nodes]
    watch.read.clear()
    try:
        with Reads(watch), watch.hooks():
            try:
                # A backward whose gradients have gradients reads more, and saves again what it
                # keeps.
                pull(is_further=True)
            except Exception:  # noqa: BLE001, as it refuses a second one
                pull()
    finally:
        for hook in hooks:
            hook.remove()


def _changes(
    each: KeptTensor, pull: Callable[..., Any], gradients: Sequence[Tensor | None]
) -> bool:
    # Does another tensor instead of this one change a gradient?
    other = _other(each.tensor)
    if other is None:
        return True
    each.replace(other)
    try:
        others = pull()
    except Exception:  # noqa: BLE001, as others may be out of a domain
        return True
    finally:
        each.replace(None)
    return not all(
        a is b or (a is not None and b is not None and _same(a, b))
        for a, b in zip(others, gradients, strict=True)
    )


def _other(x: Tensor) -> Tensor | None:
    # Other numbers must be safe to read for a kernel, so they keep shape and dtype: integers are
    # only permuted, as they may be indices. None where there are none, or too few to matter.
    if x.layout is not torch.strided or x.numel() < 2:
        return None
    if x.is_floating_point():
        return torch.full_like(x.detach(), float("nan"))
    other = ~x if x.dtype is torch.bool else x.flatten().flip(0).reshape(x.shape)
    return None if torch.equal(other, x) else other


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(
        a.isnan(), b.isnan()
    )


# --- isolated runs: whatever mode, transform or hook is around them has no effect -----------------
def keep(x: torch.Tensor, whole: bool) -> Callable[[], str] | None:
    """Return a function that restores a tensor to its present state and describes any change, "" if
    there is none. None for a tensor of another kind, or without memory of its own.

    Args:
        whole: whether to copy the values; otherwise a write is only detected, not undone.
    """
    if type(x) not in KINDS or not is_memory(x) or x.is_meta:
        return None
    # `.data` shares the memory but not the version counter, so restoring is not counted as a write.
    with _plainly(x):
        memory, values = x.data, x.data.clone() if whole else None
    version = None if x.is_inference() else x._version
    asks, attributes = x.requires_grad, dict(vars(x))
    grad = x.grad if x.is_leaf else None
    gradient = None if grad is None else keep(grad, whole)

    def put_back() -> str:
        change = "" if gradient is None else gradient()
        with _plainly(x):
            if x.data_ptr() != memory.data_ptr() or x.shape != memory.shape:
                change = "gives other memory to a tensor"
                x.data = memory
            # NaN is unequal to itself, so unchanged NaN would look like a write.
            both_nan = None if values is None else memory.isnan() & values.isnan()
            if values is not None and not ((memory == values) | both_nan).all():
                change = "writes into a tensor"
                memory.copy_(values)
        if values is None and version not in (None, x._version):
            change = "writes into a tensor of too many elements to be put back,"
        is_as_before = vars(x).keys() == attributes.keys()
        if not (is_as_before and all(vars(x)[name] is attributes[name] for name in attributes)):
            change = "sets an attribute of a tensor"
            vars(x).clear()
            vars(x).update(attributes)
        if x.requires_grad != asks and x.is_leaf:
            change = "changes requires_grad of a tensor"
            x.requires_grad_(asks)
        if x.is_leaf and x.grad is not grad:
            change = "sets the grad of a tensor"
            x.grad = grad
        return change and f"{change} from outside it"

    return put_back


@contextmanager
def _plainly(x: torch.Tensor) -> Iterator[None]:
    with without_modes(), torch.inference_mode(x.is_inference()), torch.no_grad():
        yield


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return the result of a function that runs eagerly under torch's defaults; restore torch."""
    # The run may draw, and must not shift the program's own draws.
    state = torch.get_rng_state()
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    with ExitStack() as stack:
        for clear in (without_modes, without_autocast, without_saved_tensor_hooks):
            stack.enter_context(clear())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if is_random:
            stack.enter_context(Replaying())
        try:
            return run()
        finally:
            torch.set_rng_state(state)
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Save tensors without hooks: checkpointed regions count what their hooks are given."""
    if top_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(as_it_is, as_it_is):
        yield


class Replaying(TorchFunctionMode):
    """Makes torch's own draws use the keys that a graph's draws use."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        draw = DRAWS.get(func)
        if draw is None or REPLAYED.get() is None:
            return func(*args, **kwargs)
        return draw(*args, **kwargs)


def _in_place(draw: Callable[..., Any]) -> Callable[..., Any]:
    def update(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x.copy_(draw(x, *args, **kwargs))

    return update


def _of_shape(draw: Callable[..., Any]) -> Callable[..., Any]:
    def create(*size: Any, dtype: Any = None, **options: Any) -> torch.Tensor:
        return draw(torch.empty(*size, dtype=dtype))

    return create


def _like(draw: Callable[..., Any]) -> Callable[..., Any]:
    def create(input: torch.Tensor, *, dtype: Any = None, **options: Any) -> torch.Tensor:
        return draw(torch.empty_like(input, dtype=dtype))

    return create


_T = torch.Tensor
DRAWS: dict[Any, Callable[..., Any]] = {
    **{f: _like(ALIASES[f]) for f in (torch.rand_like, torch.randn_like)},
    torch.bernoulli: ALIASES[torch.bernoulli],
    torch.nn.functional.dropout: ALIASES[torch.nn.functional.dropout],
    torch.rand: _of_shape(ALIASES[torch.rand_like]),
    torch.randn: _of_shape(ALIASES[torch.randn_like]),
    _T.bernoulli: composites.bernoulli,
    _T.bernoulli_: _in_place(composites.bernoulli_anew),
    _T.uniform_: _in_place(composites.uniform),
    _T.normal_: _in_place(composites.normal),
}
