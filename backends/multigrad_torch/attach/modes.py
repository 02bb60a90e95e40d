"""The other ways in which torch runs a custom gradient: forward mode, checkpoints, autocast; and
what the custom gradients in a graph keep.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from multigrad.backend import GradientError, Kept
from multigrad.backend.finding.values import run_on_tensors_alone

from .vjp import list_nodes, vjp

Tensor: TypeAlias = torch.Tensor
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]
Pull: TypeAlias = Callable[[Sequence[Any]], list[Tensor | None]]


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Tensor | None]]:
    """Return the outputs of a function of tensors, and their tangents."""
    with forward_ad.dual_level():
        dual = [
            x if tangent is None else forward_ad.make_dual(x, tangent)
            for x, tangent in zip(inputs, tangents, strict=True)
        ]
        parts = [forward_ad.unpack_dual(y) for y in run(dual)]
    return [part.primal for part in parts], [part.tangent for part in parts]


def checkpointed(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """As `vjp` does, under a checkpoint."""

    def recomputed(own: Sequence[Tensor]) -> list[Any]:
        return checkpoint(lambda *given: run(given), *own, use_reentrant=False)

    return vjp(recomputed, inputs)


def mapped(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """As `vjp` does, of examples, which lie along the first axis of each tensor."""

    def of_each(own: Sequence[Tensor]) -> list[Any]:
        return run_on_tensors_alone(torch.func.vmap, run, own, torch.is_tensor)

    return vjp(of_each, inputs)


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()  # of one code it compiles so many
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def reentrant(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """The same under a checkpoint of the older kind, which gives gradients to leaves alone."""
    own = [_leaf(x) for x in inputs]
    with torch.enable_grad():
        outputs = list(checkpoint(lambda *given: tuple(run(given)), *own, use_reentrant=True))
    active = [i for i, y in enumerate(outputs) if isinstance(y, Tensor) and y.requires_grad]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        for x in own:
            x.grad = None
        if active:
            given = [
                torch.zeros_like(outputs[i]) if cotangents[i] is None else cotangents[i]
                for i in active
            ]
            torch.autograd.backward([outputs[i] for i in active], given, retain_graph=True)
        return [torch.zeros_like(x) if x.grad is None and x.requires_grad else x.grad for x in own]

    return [y.detach() if isinstance(y, Tensor) else y for y in outputs], pullback


def autocast(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Pull]:
    """As `vjp` does, with the forward alone under autocast, as a training step has it."""
    device = torch.get_default_device().type
    nodes: list[Any] = []

    def cast(own: Sequence[Tensor]) -> list[Any]:
        with torch.autocast(device, torch.bfloat16):
            outputs = run(own)
        nodes[:] = custom_nodes(outputs)
        for node in nodes:
            asked = _device_asked(node._forward_cls.forward)
            if asked not in ("", device):
                raise NotImplementedError(
                    f"its custom_fwd is for the autocast of {asked}, and it runs on {device}"
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
    """Return the device whose autocast torch's `custom_fwd` around a forward looks at."""
    while forward is not None:
        code = getattr(forward, "__code__", None)
        if code is not None and code.co_name == "decorate_fwd":
            return str(inspect.getclosurevars(forward).nonlocals["device_type"])
        forward = getattr(forward, "__wrapped__", None)
    return ""


# --- what is kept ---------------------------------------------------------------------------------
def custom_nodes(outputs: Sequence[Any]) -> list[Any]:
    """Return the nodes of classes among those that lead to outputs."""
    return [node for node in list_nodes(outputs) if hasattr(node, "_forward_cls")]


def kept(run: Run, inputs: Sequence[Tensor], cotangents: Callable[..., Any]) -> list[Kept]:
    """Return the tensors that the classes keep: saved tensors and tensor attributes of ctx.

    A tensor counts as read if an op reads it, if it is saved again or returned, or if a replacement
    changes a gradient, as with kernels that torch cannot see.
    """
    watch = Watch()
    own = [_leaf(x) for x in inputs]
    wrt = [x for x in own if x.requires_grad]
    with torch.enable_grad(), watch.hooks():
        outputs = run(own)
    active = [y for y in outputs if isinstance(y, Tensor) and y.requires_grad]
    nodes = custom_nodes(active)
    held = [each for node in nodes for each in (*_saved(node, watch), *_attributes(node))]
    if not held:
        return []
    given = cotangents(active)
    tracked = [_leaf(g) for g in given]  # a backward that calls a class keeps for its gradient

    def pull(is_further: bool = False) -> list[Tensor | None]:
        return list(
            torch.autograd.grad(
                active,
                wrt,
                tracked if is_further else given,
                retain_graph=True,
                create_graph=is_further,
                allow_unused=True,
            )
        )

    gradients = pull()
    _watch_reads(pull, nodes, watch)
    found = []
    for each in held:
        is_read = each.is_surely_read or any(_place(x) in watch.read for x in each.stand_ins())
        is_read = is_read or _changes(each, pull, gradients)
        found.append(Kept(each.where, _size(each.tensor), is_read, _apart(each, watch)))
    return found


class Watch:
    """What hooks of saved tensors see."""

    def __init__(self) -> None:
        self.read: set[int] = set()
        self.without: dict[Any, list[bool]] = {}  # by node, which arguments it has no gradient for
        self.unpacked: list[Saved] = []

    def hooks(self) -> Any:
        """Return a context in which what is saved is told."""

        def pack(x: Tensor) -> Saved:
            self.read.add(_place(x))  # in a backward, of something that it keeps
            return Saved("", x)

        def unpack(saved: Saved) -> Tensor:
            self.unpacked.append(saved)
            return saved.give()

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


class Saved:
    """A tensor that a class has saved; each who asks gets another copy of it."""

    is_surely_read = False

    def __init__(self, where: str, tensor: Tensor) -> None:
        self.where, self.tensor = where, tensor
        self.copies: list[Tensor] = []  # as memory that is freed is used again
        self.other: Tensor | None = None

    def give(self) -> Tensor:
        if self.other is not None:
            return self.other
        self.copies.append(self.tensor.detach().clone())
        return self.copies[-1]

    def stand_ins(self) -> list[Tensor]:
        return self.copies

    def replace(self, other: Tensor | None) -> None:
        self.other = other


class Attribute:
    """A tensor that is an attribute of ctx, or in one."""

    def __init__(self, node: Any, name: str, tensor: Tensor, where: str) -> None:
        self.node, self.name, self.tensor, self.where = node, name, tensor, where
        offers_jvp = node._forward_cls.jvp is not torch.autograd.Function.jvp  # which may read it
        self.is_surely_read = offers_jvp or getattr(node, name) is not tensor

    def stand_ins(self) -> list[Tensor]:
        return [self.tensor]

    def replace(self, other: Tensor | None) -> None:
        setattr(self.node, self.name, self.tensor if other is None else other)


def _saved(node: Any, watch: Watch) -> Iterator[Saved]:
    watch.unpacked.clear()
    names = [n for n, x in enumerate(node.saved_tensors) if x is not None]
    for n, saved in zip(names, list(watch.unpacked), strict=True):
        saved.where = f"saved tensor {n} of {_shown(node, saved.tensor)}"
        yield saved


def _attributes(node: Any) -> Iterator[Attribute]:
    for name, value in list(vars(node).items()):
        for x in tree_leaves(value):
            if isinstance(x, Tensor):
                yield Attribute(node, name, x, f"ctx.{name} of {_shown(node, x)}")


def _shown(node: Any, x: Tensor) -> str:
    return f"{node._forward_cls.__name__}, {str(x.dtype).partition('.')[2]}{list(x.shape)}"


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_(x.is_floating_point())


def _place(x: Tensor) -> int:
    """Return where a tensor's memory begins; views have that of what they view."""
    return x.untyped_storage().data_ptr() if x.layout is torch.strided else 0


def _size(x: Tensor) -> int:
    """Return bytes; of what is sparse those of its values."""
    return x.nbytes if x.layout is torch.strided else x.element_size() * x._nnz()


def _apart(each: Saved | Attribute, watch: Watch) -> str:
    """Return whether an attribute is an output, or an input that has a gradient: within forward
    nothing else asks for one.
    """
    x = each.tensor
    if isinstance(each, Saved) or not x.requires_grad:
        return ""
    if x.grad_fn is each.node:
        return "output"
    edges = zip(each.node.next_functions, watch.without.get(each.node, []), strict=False)
    for (further, number), is_without in edges:
        is_own = getattr(further, "variable", None) is x if x.is_leaf else further is x.grad_fn
        if is_own and number == x.output_nr and is_without:
            return ""  # a number, of which a tensor was made to try it
    return "input"


class Reads(TorchDispatchMode):
    """Notes the memory of what ops read; its shape alone is no reading."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = op.__name__.partition(".")[0]
        is_like = name.endswith("_like") or name.startswith("new_") or name == "detach"
        if not op.is_view and not is_like:
            given = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
            self.watch.read.update(map(_place, given))
        return op(*args, **kwargs)


def _watch_reads(pull: Callable[..., Any], nodes: Sequence[Any], watch: Watch) -> None:
    """Run a backward, if possible one whose gradients have gradients, and note what is read."""

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
                pull(is_further=True)
            except Exception:  # noqa: BLE001, as it refuses a second one
                pull()
    finally:
        for hook in hooks:
            hook.remove()


def _changes(
    each: Saved | Attribute, pull: Callable[..., Any], gradients: Sequence[Tensor | None]
) -> bool:
    """Return whether another tensor in the place of one changes a gradient."""
    other = _other(each.tensor)
    if other is None:
        return True
    each.replace(other)
    try:
        found = pull()
    except Exception:  # noqa: BLE001, as others may be out of a domain
        return True
    finally:
        each.replace(None)
    return not all(
        a is b or (a is not None and b is not None and _same(a, b))
        for a, b in zip(found, gradients, strict=True)
    )


def _other(x: Tensor) -> Tensor | None:
    """Return other numbers of a shape, which a kernel may read safely; None where there are none,
    or too few to matter.
    """
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
