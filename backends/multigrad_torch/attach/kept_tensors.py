"""The tensors that custom classes keep for backward, and whether backward reads each of them.

An audit asks: a tensor that nothing reads is memory for nothing. Hooks see what is saved and
unpacked, a dispatch mode sees what ops read, and for what neither sees the tensor is replaced by
another one, to find out whether a gradient changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from multigrad.backend import Kept
from multigrad.engine.capture.meanings import composites
from multigrad.engine.random import REPLAYED

from ..core.attach.attach import PreparedNumbers
from ..core.state import KINDS, without_modes
from ..dialect.table import ALIASES
from .as_written import NativeFunction
from .memory import is_memory
from .vjp import as_leaf, custom_nodes

Tensor: TypeAlias = torch.Tensor
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]


def kept(run: Run, inputs: Sequence[Tensor], cotangents: Callable[..., Any]) -> list[Kept]:
    """Return the tensors that custom classes keep: saved tensors and tensor attributes of ctx.

    A tensor counts as read if an op reads it, if it is saved again or returned, or if another
    tensor instead of it changes a gradient, as with kernels that torch cannot see.
    """
    watch = Watch()
    leaves = [as_leaf(x) for x in inputs]
    wrt = [x for x in leaves if x.requires_grad]
    with torch.enable_grad(), watch.hooks():
        outputs = run(leaves)
    active = [y for y in outputs if isinstance(y, Tensor) and y.requires_grad]
    nodes = custom_nodes(active)
    tensors = [each for node in nodes for each in (*saved_of(node, watch), *attributes_of(node))]
    if not tensors:
        return []
    heads = cotangents(active)
    # A backward that calls a custom class keeps tensors only if a gradient is asked for.
    tracked_heads = [as_leaf(g) for g in heads]

    def pull(is_further: bool = False) -> list[Tensor | None]:
        return list(
            torch.autograd.grad(
                active,
                wrt,
                tracked_heads if is_further else heads,
                retain_graph=True,
                create_graph=is_further,
                allow_unused=True,
            )
        )

    gradients = pull()
    watch_reads(pull, nodes, watch)
    rows, sizes = [], Sizes()
    for each in tensors:
        is_read = each.is_surely_read or any(address(x) in watch.read for x in each.readers)
        is_read = is_read or changes_a_gradient(each, pull, gradients)
        rows.append(
            Kept(each.where, sizes.count(each.tensor), is_read, kept_unknown_to_torch(each, watch))
        )
    return rows


class Watch(TorchDispatchMode):
    """A mode that notes the memory that ops read, and hooks for what is saved.

    Attributes:
        read: the addresses of the memory that was read; reading only a shape does not count.
        without: by node, which arguments get no gradient.
        unpacked: the saved tensors that were unpacked, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()
        self.without: dict[Any, list[bool]] = {}
        self.unpacked: list[KeptTensor] = []

    def hooks(self) -> Any:
        """Return a context in which autograd saves each tensor as a `KeptTensor`."""

        def pack(x: Tensor) -> KeptTensor:
            # Saving a tensor again, in a backward, counts as reading it.
            self.read.add(address(x))
            return KeptTensor(x)

        def unpack(saved: KeptTensor) -> Tensor:
            self.unpacked.append(saved)
            return saved.unpack()

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = op.__name__.partition(".")[0]
        is_like = name.endswith("_like") or name.startswith("new_") or name == "detach"
        if not op.is_view and not is_like:
            operands = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
            self.read.update(map(address, operands))
        return op(*args, **kwargs)


class KeptTensor:
    """A tensor that a class has saved, or one in an attribute of ctx.

    Attributes:
        where: what a report calls it.
        node, name: the node of autograd, and its attribute that holds the tensor; None: saved.
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


def saved_of(node: Any, watch: Watch) -> Iterator[KeptTensor]:
    # Reading `saved_tensors` calls the unpack hook once for each of them, in order.
    watch.unpacked.clear()
    positions = [position for position, x in enumerate(node.saved_tensors) if x is not None]
    for position, each in zip(positions, list(watch.unpacked), strict=True):
        each.where = f"saved tensor {position} of {describe(node, each.tensor)}"
        yield each


def attributes_of(node: Any) -> Iterator[KeptTensor]:
    """Yield the tensors in the attributes of a node's ctx, also within containers."""
    for name, value in list(vars(node).items()):
        # A class of ours keeps its numbers as tensors, which all calls with these numbers share.
        numbers = getattr(node._forward_cls, "constants", None)
        if name == "values" and isinstance(numbers, PreparedNumbers):
            continue
        for x in tree_leaves(value):
            if isinstance(x, Tensor):
                yield KeptTensor(x, f"ctx.{name} of {describe(node, x)}", node, name)


def describe(node: Any, x: Tensor) -> str:
    cls = node._forward_cls
    name = node.call.name if cls is NativeFunction else cls.__name__
    return f"{name}, {str(x.dtype).partition('.')[2]}{list(x.shape)}"


def address(x: Tensor) -> int:
    """Return where a tensor's memory begins; a view has the address of what it views."""
    return x.untyped_storage().data_ptr() if x.layout is torch.strided else 0


class Sizes:
    """The bytes of tensors, each memory once."""

    def __init__(self) -> None:
        self.parts: dict[int, dict[tuple[int, int], int]] = {}  # by memory, what is counted of it

    def count(self, x: Tensor) -> int:
        """Return the bytes of a tensor that lie in no memory that was counted before."""
        is_strided = x.layout is torch.strided
        size = x.nbytes if is_strided else x.element_size() * x._nnz()
        memory, total = memory_of(x, size)
        parts = self.parts.setdefault(memory, {})
        part = size, x.storage_offset() if is_strided else 0
        if part in parts:
            return 0
        # Views may overlap.
        parts[part] = max(min(size, total - sum(parts.values())), 0)
        return parts[part]


def memory_of(x: Tensor, size: int = 0) -> tuple[int, int]:
    """Return the address and the bytes of a tensor's memory, which are those of all its views; of
    one without a storage, the given size.
    """
    try:
        storage = x.untyped_storage()
        return storage.data_ptr() or id(x), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # of subclasses, and of sparse tensors
        return id(x), size


def kept_unknown_to_torch(each: KeptTensor, watch: Watch) -> str:
    """Return "input" or "output" for one in an attribute of ctx, which torch does not know to be
    kept; "" for any other tensor.
    """
    # Within forward only an output, or an input that has a gradient, requires grad.
    x = each.tensor
    if each.node is None or not x.requires_grad:
        return ""
    if x.grad_fn is each.node:
        return "output"
    edges = zip(each.node.next_functions, watch.without.get(each.node, []), strict=False)
    for (next_node, number), has_no_gradient in edges:
        is_own = getattr(next_node, "variable", None) is x if x.is_leaf else next_node is x.grad_fn
        if is_own and number == x.output_nr and has_no_gradient:
            return ""  # a number, which became a tensor for this trial
    return "input"


def watch_reads(pull: Callable[..., Any], nodes: Sequence[Any], watch: Watch) -> None:
    """Run backward once, and note what it reads, and which arguments of nodes get no gradient."""

    def note_of(node: Any) -> Callable[[Any, Any], None]:
        def note(gradients: Any, _: Any) -> None:
            watch.read.update(address(g) for g in gradients if g is not None)
            watch.without[node] = [g is None for g in gradients]

        return note

    hooks = [node.register_hook(note_of(node)) for node in nodes]
    watch.read.clear()
    try:
        with watch, watch.hooks():
            try:
                # Differentiable, it reads more, and saves again what it keeps.
                pull(is_further=True)
            except Exception:  # noqa: BLE001, as it refuses a second one
                pull()
    finally:
        for hook in hooks:
            hook.remove()


def changes_a_gradient(
    each: KeptTensor, pull: Callable[..., Any], gradients: Sequence[Tensor | None]
) -> bool:
    replacement = other_values(each.tensor)
    if replacement is None:
        return True
    each.replace(replacement)
    try:
        other_gradients = pull()
    except Exception:  # noqa: BLE001, as others may be out of a domain
        return True
    finally:
        each.replace(None)
    return not all(
        a is b or (a is not None and b is not None and torch.allclose(a, b, 0, 0, equal_nan=True))
        for a, b in zip(other_gradients, gradients, strict=True)
    )


def other_values(x: Tensor) -> Tensor | None:
    """Return a tensor with other values; None where there are none, or too few to matter."""
    # A kernel must be safe to read them: integers are only permuted, as they may be indices.
    if x.layout is not torch.strided or x.numel() < 2:
        return None
    if x.is_floating_point():
        return torch.full_like(x.detach(), float("nan"))
    values = ~x if x.dtype is torch.bool else x.flatten().flip(0).reshape(x.shape)
    return None if torch.equal(values, x) else values


# --- draws of torch's own in a proof, by the keys that a graph's draws use ------------------------
def replaying() -> Replaying:
    """Return a context in which draws are replayed."""
    return Replaying()


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
    def update(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.copy_(draw(x, *args, **kwargs))

    return update


def _of_shape(draw: Callable[..., Any]) -> Callable[..., Any]:
    def create(*size: Any, dtype: Any = None, **options: Any) -> Tensor:
        return draw(torch.empty(*size, dtype=dtype))

    return create


def _like(draw: Callable[..., Any]) -> Callable[..., Any]:
    def create(input: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
        return draw(torch.empty_like(input, dtype=dtype))

    return create


DRAWS: dict[Any, Callable[..., Any]] = {
    **{f: _like(ALIASES[f]) for f in (torch.rand_like, torch.randn_like)},
    torch.bernoulli: ALIASES[torch.bernoulli],
    torch.nn.functional.dropout: ALIASES[torch.nn.functional.dropout],
    torch.rand: _of_shape(ALIASES[torch.rand_like]),
    torch.randn: _of_shape(ALIASES[torch.randn_like]),
    Tensor.bernoulli: composites.bernoulli,
    Tensor.bernoulli_: _in_place(composites.bernoulli_anew),
    Tensor.uniform_: _in_place(composites.uniform),
    Tensor.normal_: _in_place(composites.normal),
}


# --- tensors that are put back into the state that they had before a run of the user's code -------
def keep(x: Tensor, whole: bool) -> Callable[[], str] | None:
    """Return a function that restores a tensor to its present state and describes any change, "" if
    there is none. None for a tensor of another kind, or without memory of its own.

    Unless `whole`, values are not copied, and a write is only detected.
    """
    if type(x) not in KINDS or not is_memory(x) or x.is_meta:
        return None
    return TensorState(x, whole).put_back


class TensorState:
    """The state of a tensor at one time: memory, values, attributes, requires_grad and grad."""

    def __init__(self, x: Tensor, whole: bool) -> None:
        self.tensor = x
        # `.data` shares the memory but not the version counter, so restoring is no write.
        with plainly(x):
            self.memory, self.values = x.data, x.data.clone() if whole else None
        self.version = None if x.is_inference() else x._version
        self.requires_grad, self.attributes = x.requires_grad, dict(vars(x))
        self.grad = x.grad if x.is_leaf else None
        self.put_back_grad = None if self.grad is None else keep(self.grad, whole)

    def put_back(self) -> str:
        """Restore the tensor; return what was changed, the last of it, "" if nothing was."""
        x = self.tensor
        change = "" if self.put_back_grad is None else self.put_back_grad()
        change = self._put_back_values() or change
        has_same_names = vars(x).keys() == self.attributes.keys()
        if not (has_same_names and all(vars(x)[n] is each for n, each in self.attributes.items())):
            change = "sets an attribute of a tensor"
            vars(x).clear()
            vars(x).update(self.attributes)
        if x.requires_grad != self.requires_grad and x.is_leaf:
            change = "changes requires_grad of a tensor"
            x.requires_grad_(self.requires_grad)
        if x.is_leaf and x.grad is not self.grad:
            change = "sets the grad of a tensor"
            x.grad = self.grad
        return change and f"{change} from outside it"

    def _put_back_values(self) -> str:
        x, memory, values, change = self.tensor, self.memory, self.values, ""
        with plainly(x):
            if x.data_ptr() != memory.data_ptr() or x.shape != memory.shape:
                change = "gives other memory to a tensor"
                x.data = memory
            if values is not None:
                # NaN is unequal to itself, so unchanged NaN would look like a write.
                both_nan = memory.isnan() & values.isnan()
                if not ((memory == values) | both_nan).all():
                    change = "writes into a tensor"
                    memory.copy_(values)
        if values is None and self.version not in (None, x._version):
            change = "writes into a tensor of too many elements to be put back,"
        return change


@contextmanager
def plainly(x: Tensor) -> Iterator[None]:
    with without_modes(), torch.inference_mode(x.is_inference()), torch.no_grad():
        yield
