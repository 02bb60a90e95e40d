"""Backends: what one must offer, how they are found, and which one owns a value.

A backend is found by the entry-point group `multigrad.backends`, ours and strangers' alike. Nothing here names a
framework: a value's owner is looked for among the backends whose framework is already imported, and cached
by type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import BackendNotFound, MultigradError, UnsupportedOp, suggest
from ..ir.ops import Op
from .differences import Differences
from .patterns import FastKernels

if TYPE_CHECKING:
    from ..bridging.foreign import Foreign
    from .code import Lowering
    from .lent import Lent

Tensor = Any
GROUP = "multigrad.backends"


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """One framework's rows and hooks. Fields marked optional may be None.

    Attributes:
        name: as users write it ("torch").
        module: the framework's import name; its presence in `sys.modules` says that it is in use.
        distribution: what to install.
        tensor_types: the classes of its tensors, tracers and parameters included.
        ops: native callables by op; an op with a symbol may be left out and is written infix.
        unsupported: what is missing, with the reason; for an op that stands in `ops` but lacks some dtypes, the
            reasons by dtype ({"float16": "no CPU kernel"}).
        dtype: the framework's dtype object for an IR name.
        render: the source of the native custom-gradient object for a lowering.
        finish: that object, from the namespace the source was executed in.
        attach_native: the same for a rule that runs as it is: (forward, backward, name) -> object.
        attach_function: the same for a whole function, applied at once: (run, tensors, name) -> a tuple of outputs, where
            `run(*tensors) -> (outputs, pull, undifferentiable)` and `pull(*cotangents)` gives a gradient or None for
            each tensor; `undifferentiable` are positions of outputs without a gradient.
        call: how to call the object: (object, lowering) -> `f(*inputs, *values)`.
        bind: optional; (object, x, values) -> `f(tin)` for tensors like x, faster than `call`.
        weak: optional; (scalar, dtype) -> scalar of that dtype, where the framework would promote.
        weak_literals: whether `weak` is needed for literals too.
        scalar_left: faster callables `f(tensor, scalar)` for `op(scalar, tensor)`.
        scalar_right: the same for `op(tensor, scalar)`.
        wrap: optional; goes around emitted functions that no native object holds.
        forward_mode: whether `render` makes use of a lowering's tangent map.
        namespace: names that `render` uses.
        fast: kernels for code that nobody takes a derivative of.
        differentiates_residuals: whether a float kept by forward keeps its derivative in backward.
        mirror: optional; a context manager that shows the frame's token to the compiler.
        show: optional; called with a frame that is now in force, where its rule has tensors for params; where it ends, `mirror`
            shows what is in force then.
        hook_params: optional; a context manager within which rules act on parameters' gradients by themselves, for a `use` that
            names the scope "params"; the frame's `hooks_params` says on which thread.
        guard: optional; called with (x, activation) wherever the rule in force is read, x and activation where there are
            any, and with a third argument "params" where it is that of this scope; raises StaleTraceError.
        watch: optional; called with what a layer holds, and with each name that is looked up; compiled code that was traced
            with it raises StaleTraceError, or is made anew, once its `superseded` is true.
        refresh: optional; called with the registry's epoch when a name changes its meaning.
        renew: optional; lets nothing be used again that was compiled before, where `guard` cannot tell.
        opaque: optional; keeps a compiler that reads Python code out of a function.
        is_exporting: optional; whether the framework's own exporter traces now.
        read_number: optional; the number in a 0-d tensor or variable where reading it is faster than computing with the tensor,
            else the tensor.
        draw_key: two uint32 (or a tensor of them) from the framework's own generator.
        key_pair: the key in a user's key object.
        fold_in: (key, n) -> key.
        is_traced: whether a value is known at run time only.
        to_numpy: a concrete tensor as a NumPy array.
        from_numpy: a NumPy array as a tensor of the same dtype, on the framework's default device.
        jit: `xg.jit` for this framework.
        precision: optional; the mode that keeps a dtype, by its name (jax needs one for 64 bits).
        forbid_derivative: optional; (message) -> the identity on tensors, which raises GradientError where a derivative of
            it is taken.
        vjp: optional; (run, inputs) -> (outputs, pullback) by the framework's autodiff, on flat lists of tensors; without
            it `xg.vjp` captures.
        lend: optional; a tensor as others may read it (`lowering/lent.py`); without it they get NumPy's copy.
        borrow: optional; (lent, own) -> a tensor of what was lent, in place where alignment and layout allow; `own`: in memory
            of its own.
        bridge: optional; (foreign, tensors) -> a tuple of outputs: applies what runs in another framework
            (`bridging/foreign.py`), with its gradient in this one's autodiff; without it no other framework can run in this one.
        outside: optional; goes around emitted functions that run outside of the framework's autodiff, for another one.
        import_function: optional; the recipe of the framework's own custom gradient.
        region: optional; a context manager around what reads the rule in force: where a region of forward runs again within
            backward, that of its first run.
        repeat_draw: optional; goes around the draw of a Function's key, and returns that of the first run where a
            region of forward runs again within backward.
        isolate: optional; (run, is_random) -> what `run()` returns, computed at once and on its own, whatever is traced,
            transformed, recorded or put in force around the call; the framework's generator stays as it is. Where it is
            random, the framework's own draws take the keys of `ir.neutral_arrays.REPLAYED`, if `replays_draws` says so.
        replays_draws: see `isolate`.
        differences: where its numbers are not those of the formulas.
    """

    name: str
    module: str
    distribution: str
    tensor_types: Callable[[], tuple[type, ...]]
    ops: Mapping[Op, Callable[..., Any]]
    unsupported: Mapping[Op, str | Mapping[str, str]]
    dtype: Callable[[str], Any]
    render: Callable[[Lowering], str]
    finish: Callable[[dict[str, Any], Lowering], Any]
    attach_native: Callable[..., Any]
    attach_function: Callable[..., tuple[Any, ...]]
    call: Callable[[Any, Lowering], Callable[..., Any]]
    draw_key: Callable[[], Any]
    key_pair: Callable[[Any], Any]
    fold_in: Callable[[Any, int], Any]
    is_traced: Callable[[Any], bool]
    to_numpy: Callable[[Any], Any]
    from_numpy: Callable[[Any], Any]
    bind: Callable[[Any, Any, tuple[Any, ...]], Callable[[Any], Any]] | None = None
    weak: Callable[[Any, Any], Any] | None = None
    weak_literals: bool = False
    scalar_left: Mapping[Op, Callable[..., Any]] = field(default_factory=dict)
    scalar_right: Mapping[Op, Callable[..., Any]] = field(default_factory=dict)
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    forward_mode: bool = False
    namespace: Mapping[str, Any] = field(default_factory=dict)
    fast: FastKernels = field(default_factory=FastKernels)
    differentiates_residuals: bool = False
    mirror: Callable[[str], AbstractContextManager[Any]] | None = None
    show: Callable[[Any], None] | None = None
    hook_params: Callable[[], AbstractContextManager[Any]] | None = None
    guard: Callable[..., None] | None = None
    watch: Callable[[Any], None] | None = None
    refresh: Callable[[int], None] | None = None
    renew: Callable[[], None] | None = None
    opaque: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    is_exporting: Callable[[], bool] | None = None
    read_number: Callable[[Any], Any] | None = None
    jit: Callable[..., Any] | None = None
    precision: Callable[[str], AbstractContextManager[Any]] | None = None
    forbid_derivative: Callable[[str], Callable[[Any], Any]] | None = None
    vjp: Callable[..., Any] | None = None
    lend: Callable[[Any], Lent] | None = None
    borrow: Callable[[Lent, bool], Any] | None = None
    bridge: Callable[[Foreign, tuple[Any, ...]], tuple[Any, ...]] | None = None
    outside: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    import_function: Callable[[Any], Any] | None = None
    region: Callable[[], AbstractContextManager[Any]] | None = None
    repeat_draw: Callable[[Callable[[], Any]], Any] | None = None
    isolate: Callable[[Callable[[], Any], bool], Any] | None = None
    replays_draws: bool = False
    differences: Differences = field(default_factory=Differences)

    def __repr__(self) -> str:
        return f"<backend {self.name}>"


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """One row of `xg.backends()`."""

    name: str
    installed: bool
    version: str | None
    reason: str | None


_loaded: dict[str, Backend] = {}
_owners: dict[type, Backend] = {}


def load_backend(name: str) -> Backend:
    """Return the backend of that name, importing its framework.

    Raises:
        BackendNotFound: there is none, or its framework is not installed.
    """
    backend = _loaded.get(name)
    if backend is not None:
        return backend
    points = entry_points()
    if name not in points:
        raise BackendNotFound(
            f"no backend named {name!r}{suggest(name, points)} (backends: {', '.join(points)})"
        )
    try:
        backend = points[name].load()  # an import, for which other threads wait by its own lock
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise  # the framework is there: something else is broken, and should be seen
        raise BackendNotFound(
            f"backend {name!r} needs {error.name}, which is not installed: "
            f"pip install 'multigrad-rules[{name}]'"
        ) from error
    return _loaded.setdefault(name, backend)


def entry_points() -> Mapping[str, Any]:
    """Return the entry points of all backends by name, NumPy first; read once per process.

    An entry point is named after its framework's import name.
    """
    if not _points:
        from importlib.metadata import entry_points as find

        # The reference needs no installation metadata, so that the core works from a source tree.
        others = {point.name: point for point in find(group=GROUP) if point.name != "numpy"}
        _points.update({"numpy": _ReferencePoint(), **others})  # at once: other threads look too
    return _points


_points: dict[str, Any] = {}


class _ReferencePoint:
    def load(self) -> Backend:
        from .reference import backend

        return backend


def backends() -> list[BackendStatus]:
    """Return one row per backend: name, installed, version, and why not. No framework is imported."""
    return [_status(name) for name in entry_points()]


def _status(name: str) -> BackendStatus:
    from importlib.metadata import packages_distributions, version
    from importlib.util import find_spec

    if find_spec(name) is None:
        return BackendStatus(name, False, None, f"pip install 'multigrad-rules[{name}]'")
    module = sys.modules.get(name)
    known = getattr(module, "__version__", None)
    if known is None:
        distributions = packages_distributions().get(name, ())
        known = version(distributions[0]) if distributions else None
    return BackendStatus(name, True, known, None)


def backend_of(value: Any) -> Backend:
    """Return the backend that owns a value.

    Raises:
        BackendNotFound: no backend whose framework is imported takes values of this type.
    """
    type_ = type(value)
    backend = _owners.get(type_)
    if backend is None:
        backend = _find_owner(type_)
        _owners[type_] = backend
    return backend


def _find_owner(type_: type) -> Backend:
    for backend in in_use():
        if issubclass(type_, backend.tensor_types()):
            return backend
    names = ", ".join(entry_points())
    raise BackendNotFound(
        f"no backend takes a {type_.__module__}.{type_.__qualname__}; "
        f"expected a NumPy array or a tensor of an installed backend ({names})"
    )


def in_use() -> list[Backend]:
    """Return the backends whose framework is already imported."""
    found = []
    for name in entry_points():
        if name in _loaded or name in sys.modules:
            try:
                found.append(load_backend(name))
            except BackendNotFound:
                continue
    return found


def loaded() -> list[Backend]:
    """Return the backends loaded so far."""
    return list(_loaded.values())


def backend_among(values: Any) -> Backend:
    """Return the one backend that owns the tensors among `values`, plain numbers aside.

    Raises:
        MultigradError: they belong to two frameworks.
    """
    tensors = [v for v in values if not isinstance(v, bool | int | float | tuple | type(None))]
    owners = {backend_of(v) for v in tensors}
    if len(owners) > 1:
        names = " and ".join(sorted(owner.name for owner in owners))
        raise MultigradError(f"one call mixes tensors of {names}; convert them to one framework")
    return owners.pop() if owners else load_backend("numpy")


def mirror_frame(stack: ExitStack, token: str) -> None:
    """Show a frame's token to the compilers of all frameworks in use, until the stack closes."""
    for backend in in_use():
        if backend.mirror is not None:
            stack.enter_context(backend.mirror(token))


def show_frame(frame: Any) -> None:
    """Show a frame whose rule has tensors for params to the compilers of all frameworks in use, once it is in force."""
    for backend in in_use():
        if backend.show is not None:
            backend.show(frame)


def hook_params(stack: ExitStack) -> None:
    """Let rules act on parameters' gradients by themselves, in frameworks that can, until the stack closes."""
    for backend in in_use():
        if backend.hook_params is not None:
            stack.enter_context(backend.hook_params())


def concrete_number(value: Any) -> float | None:
    """Return a 0-d tensor's number, or None where it is known at run time only."""
    backend = backend_of(value)
    return None if backend.is_traced(value) else float(backend.to_numpy(value))


def key_pair(key: Any) -> Any:
    """Return the two uint32 words in a user's key object, or a traced form of them."""
    from ..errors import RuleValueError

    if isinstance(key, tuple | list):
        if len(key) == 2 and all(isinstance(word, int) and 0 <= word < 2**32 for word in key):
            return (int(key[0]), int(key[1]))
        raise RuleValueError(f"a key of two words needs two uint32, got {key!r}")
    try:
        backend = backend_of(key)
    except BackendNotFound:
        raise RuleValueError(
            f"key must be an int, a jax key or two uint32, got {type(key).__name__} {key!r}"
        ) from None
    return backend.key_pair(key)


def key_for(backend: Backend, key: Any) -> Any:
    """Return a key such as a backend folds in: two ints of what is another framework's.

    Raises:
        RuleError: another framework's trace holds it.
    """
    from ..errors import RuleError

    if isinstance(key, tuple):
        return key
    owner = backend_of(key)
    if owner is backend:
        return key
    if owner.is_traced(key):
        raise RuleError(
            f"the key belongs to a trace of {owner.name} and {backend.name} draws: give a key that is known, "
            f"an int or two uint32"
        )
    first, second = owner.to_numpy(key).tolist()
    return first, second


def compute(op: Op, operands: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    """Compute one op at once, on the backend that owns its operands."""
    from ..ir.scalars import on_numbers, symbol_function

    if operands and all(isinstance(o, bool | int | float) for o in operands):
        return on_numbers(op, operands, dict(attrs))
    backend = backend_among(operands)
    native = backend.ops.get(op) or symbol_function(op)
    if native is None:
        reason = backend.unsupported.get(op, "it has no row for it")
        raise UnsupportedOp(f"{op.name} is not available on {backend.name}: {reason}")
    if op.coerce in ("float", "where"):
        operands = _agree(op, operands, backend)
    reasons = backend.unsupported.get(op)
    if isinstance(reasons, Mapping):
        _refuse_dtype(op, operands, backend, reasons)
    return native(*operands, **attrs)


def _refuse_dtype(
    op: Op, operands: tuple[Any, ...], backend: Backend, reasons: Mapping[str, str]
) -> None:
    from ..ir.record import dtype_name

    for dtype in (dtype_name(o.dtype) for o in operands if hasattr(o, "dtype")):
        if dtype in reasons:
            raise UnsupportedOp(
                f"{op.name} is not available on {backend.name} for {dtype}: {reasons[dtype]}. "
                f"Cast to another float dtype before it and back after it"
            )


def _agree(op: Op, operands: tuple[Any, ...], backend: Backend) -> tuple[Any, ...]:
    """Give numbers, masks and integers the dtype of the float tensors, as capture does."""
    from ..ir import ops

    kept = operands[:1] if op is ops.WHERE else ()  # the condition
    values = operands[len(kept) :]
    dtypes = [str(getattr(value, "dtype", "bool")) for value in values]
    like = next((v for v, name in zip(values, dtypes, strict=True) if "float" in name), None)
    if like is None and op in (ops.MEAN, ops.STD, ops.VAR, ops.NORM) and "bool" in dtypes[0]:
        like_dtype = backend.dtype("float32")  # the share of a mask
        return tuple(backend.ops[ops.CAST](value, dtype=like_dtype) for value in operands)
    if like is None:  # integers among themselves, and with numbers: as the framework has it
        return operands
    agreed: list[Any] = []
    for value, name in zip(values, dtypes, strict=True):
        if isinstance(value, bool | int | float):
            agreed.append(value if backend.weak is None else backend.weak(value, like.dtype))
        else:
            is_cast = "float" not in name
            agreed.append(backend.ops[ops.CAST](value, dtype=like.dtype) if is_cast else value)
    return (*kept, *agreed)
