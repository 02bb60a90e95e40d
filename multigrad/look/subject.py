"""Subjects of checks: a Function, an activation, a rule or somebody else's custom gradient, as a
function of tensors; and its runs, from arrays to arrays of outputs and gradients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from types import FunctionType, ModuleType
from typing import Any, TypeAlias, cast

import numpy as np

from ..core.backend.contract import Backend
from ..core.backend.discovery import (
    backend_among,
    backend_of,
    in_use,
    load_backend,
    refuse_unusable,
)
from ..core.backend.values import is_float_tensor, owner_of
from ..core.functions.arguments import Layout, flatten
from ..core.functions.recipe import NotCaptured, Options
from ..core.ir.op import dtype_name
from ..core.lowering.forwards import Forward
from ..core.lowering.function_graph import FunctionGraph
from ..core.ops.numerics import as_numpy_dtype, ignoring_warnings
from ..core.rules.activation import Activation
from ..core.rules.registry import resolve
from ..core.rules.rule import Rule
from ..core.rules.signature import name_of
from ..core.rules.vjp import vjp_leaves
from ..core.support.trees import Tensor, optree
from ..engine import random
from ..engine.capture.user_code.libraries import dialect_of
from ..engine.functions.calls.arguments import name_paths, positional_names, replace_at, unwrap
from ..engine.functions.calls.parameters import BoundFunction, signature_of
from ..engine.functions.code_recipes import recipe_of_pair
from ..engine.functions.custom_gradient import function as make_function
from ..engine.functions.decision import SHOWN
from ..engine.functions.function import Function
from ..engine.functions.importers import as_function, find_custom
from ..engine.functions.known_forms import find_variant, shape_under
from ..engine.functions.proof.meanings import Bounded, VectorSigns, run_bounded
from ..engine.functions.proof.run import home_name
from ..engine.functions.proof.run import homes as homes_of_dialect
from ..engine.functions.proof.samples import is_float as is_float_array
from ..engine.random import key_from_int
from ..errors import MultigradError, RuleTypeError, TraceError

Array: TypeAlias = np.ndarray[Any, Any]
SHAPE = (4, 6)  # of inputs that are made up
SEED = 20  # of inputs and cotangents that are made up


JSON_VERSION = 1


class Report:
    """A report: true if all is well, and printed as a table."""

    __slots__ = ()
    ok: bool

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return str(self)

    def to_json(self) -> str:
        """Return the report as one line of JSON, whose `version` grows when a field leaves or
        changes its meaning; null stands for what is not finite.
        """
        fields = {"version": JSON_VERSION, "ok": self.ok, **self._fields()}
        # JSON has no infinity.
        return json.dumps(json.loads(json.dumps(fields), parse_constant=lambda _: None))

    def _fields(self) -> dict[str, Any]:
        return asdict(cast("Any", self))


@dataclass(frozen=True, slots=True)
class Subject:
    """A function with a gradient, to be checked.

    Attributes:
        call: a function of tensors of any framework, or of those in `homes`; an Activation, if
            `function` is None.
        function: a Function, or what multigrad makes of somebody else's code.
        forward: the activation, where it is one; its derivative is known.
        is_surrogate: whether its gradient is meant to differ from the true one.
        meant: the function whose derivative it is meant to be; None: its own.
        homes: of code that is written for a framework, where it may run, the likeliest first.
        is_custom: whether it is somebody else's custom gradient itself, not a function that may
            apply one.
    """

    name: str
    call: Any
    function: Any = None
    forward: Forward | None = None
    is_surrogate: bool = False
    meant: Any = None
    homes: tuple[Backend, ...] = ()
    is_custom: bool = False


def subject_of(obj: Any) -> Subject:
    inner = getattr(obj, "_activation", obj)  # of a module or layer
    inner = made_of_pair(getattr(inner, "captured_form", inner))  # of what `override` returned
    if isinstance(inner, Function):
        return Subject(inner.name, inner, function=inner, is_surrogate=inner.is_surrogate)
    if isinstance(inner, Activation):
        is_ruled = inner.in_force() is not None
        # Without a rule a forward of code is a Function with its own backward.
        if inner.forward.function is not None and not is_ruled:
            return Subject(repr(inner), inner, function=inner.forward.function)
        return Subject(repr(inner), inner, forward=inner.forward, is_surrogate=is_ruled)
    if isinstance(inner, str | Rule):
        rule = resolve(inner)
        act = Activation("Linear", rule)
        return Subject(f"{rule.name} under Linear", act, forward=act.forward, is_surrogate=True)
    if isinstance(inner, BoundFunction):
        function = Function(recipe_of_pair(inner, name=inner.name), inner)
        is_ruled = inner.function.is_surrogate
        return Subject(inner.name, inner, function=function, is_surrogate=is_ruled)
    original = find_original(inner)
    home = home_name(original.function.recipe.dialect())
    is_free = home in ("", "numpy") and isinstance(inner, FunctionType)
    return replace(original, homes=()) if is_free else original


def is_of_arrays(obj: Any, owners: Iterable[Backend]) -> bool:
    """Return whether a plain function, called with NumPy's arrays, is written in NumPy."""
    names = {owner.name for owner in owners}
    is_plain = isinstance(obj, FunctionType) and names == {"numpy"}
    return is_plain and dialect_of(obj, "numpy") == "numpy"


def as_given(obj: Any, owners: Iterable[Backend]) -> Any:
    """Return a plain function that is NumPy's as it is called as a Function, all else unchanged."""
    return make_function(obj) if is_of_arrays(obj, owners) else obj


def made_of_pair(obj: Any) -> Any:
    """Return a forward and a backward, as `xg.function` takes them, as a Function that runs them as
    they are, and anything else unchanged.
    """
    if isinstance(obj, tuple) and 1 < len(obj) < 4 and all(map(callable, obj)):
        return make_function(*obj, native=True)
    return obj


def origin_of(obj: Any) -> Any:
    """Return the object that a Function was made from, such as an `autograd.Function`, if any."""
    return getattr(getattr(obj, "recipe", None), "origin", None)


def make_inputs(subject: Subject) -> tuple[Any, ...]:
    """Return inputs for an object given none: a grid for an activation, else normal numbers."""
    if subject.forward is not None or subject.function is None:
        return (np.linspace(-2.0, 2.0, 41),)
    if subject.function.examples is not None:
        return subject.function.examples
    if subject.function.document is not None:
        form = subject.function.document.forms[0]
        return fill(form.layout, form.facts)
    try:
        layout = find_variant(subject.function, SHOWN).layout
    except (NotCaptured, TraceError) as error:
        if subject.call is not subject.function:
            message = f"nobody knows with what {subject.name} is called: give its inputs behind it"
            raise RuleTypeError(message) from error
        raise getattr(error, "error", error) from None
    return fill(layout, {})


def fill(layout: Layout, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return arguments of a layout, tensors of SHAPE or what facts make of it."""
    generator = np.random.default_rng(SEED)
    leaves: list[Any] = []
    for n, leaf in enumerate(layout.leaves):
        if leaf.kind == "tensor":
            shape = shape_under(facts, layout, n, SHAPE)
            numbers = generator.standard_normal(shape)
            leaves.append(numbers if leaf.is_float else np.zeros(shape, leaf.dtype))
        else:
            leaves.append(1.0 if leaf.kind == "number" else leaf.value)
    args, _ = layout.rebuild(leaves)
    return args


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call as flat leaves; tensors, at `places`, are NumPy arrays."""

    leaves: tuple[Any, ...]
    tree: Any
    places: tuple[int, ...]

    @property
    def arrays(self) -> list[Array]:
        return [self.leaves[place] for place in self.places]

    def paths(self, names: Sequence[str]) -> list[str]:
        """Return the name of each tensor, by those of the positional parameters."""
        paths = name_paths([*names], self.tree)
        return [paths[place] for place in self.places]

    def cast(self, dtype: str) -> list[Array]:
        """Return the arrays, floats in the given dtype."""
        return [as_float(array, dtype) if is_float_array(array) else array for array in self.arrays]

    def nest(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return optree.tree_unflatten(self.tree, replace_at(self.leaves, self.places, tensors))

    def mode(self, backend: Backend) -> AbstractContextManager[Any]:
        wide = any(array.dtype == np.float64 for array in self.arrays)
        return precision(backend, "float64" if wide else "float32")

    def tensors(self, backend: Backend) -> list[Any]:
        """Return the arrays as a backend's tensors, which may be written to."""
        return [backend.tensors.from_numpy(array.copy()) for array in self.arrays]

    def pull(
        self,
        call: Callable[..., Any],
        backend: Backend,
        tensors: Sequence[Any],
        vjp: Callable[..., Any] | None = None,
    ) -> tuple[list[Any], Callable[[list[Any]], list[Any]]]:
        """Return the outputs for tensors at the places, and the map from cotangents to theirs."""
        leaves = replace_at(self.leaves, self.places, tensors)
        outputs, _, pull = vjp_leaves(call, leaves, self.tree, backend, vjp)

        def pull_places(cotangents: list[Any]) -> list[Any]:
            gradients = pull(cotangents)
            return [gradients[place] for place in self.places]

        return outputs, pull_places

    def differentiate(
        self,
        call: Callable[..., Any],
        backend: Backend,
        cotangents: Cotangents,
        tensors: Sequence[Any] | None = None,
        vjp: Callable[..., Any] | None = None,
    ) -> tuple[list[Any], list[Any]]:
        inputs = self.tensors(backend) if tensors is None else tensors
        outputs, pull = self.pull(call, backend, inputs, vjp)
        return outputs, pull(
            [_as_cotangent(n, each, backend, cotangents) for n, each in enumerate(outputs)]
        )


@dataclass(frozen=True, slots=True)
class Inputs(Arguments):
    """The inputs of a subject.

    Attributes:
        names: those of the positional parameters.
        owner: the backend of the tensors.
    """

    names: list[str]
    owner: Backend | None


def brackets(index: Sequence[int]) -> str:
    """Return an index as it is written: [1][2]."""
    return "".join(f"[{i}]" for i in index)


def as_float(array: Array, dtype: str) -> Array:
    return array.astype(as_numpy_dtype(dtype))


def in_dtype(inputs: Iterable[Any], dtype: str) -> list[Any]:
    """Return inputs, tensors of floats as arrays of another dtype."""

    def cast(leaf: Any) -> Any:
        array = as_array(leaf)
        is_float = isinstance(array, np.ndarray) and is_float_array(array)
        return as_float(array, dtype) if is_float else leaf

    return optree.tree_map(cast, list(inputs), none_is_leaf=True)  # type: ignore[return-value]


def read_inputs(subject: Subject, inputs: tuple[Any, ...]) -> Inputs:
    """Return inputs as they were given, tensors of any framework as NumPy arrays."""
    if subject.forward is not None and len(inputs) != 1:
        raise RuleTypeError(f"{subject.name} takes one tensor, got {len(inputs)} inputs")
    if subject.forward is not None and isinstance(inputs[0], list | tuple | dict):
        kind = type(inputs[0]).__name__
        raise RuleTypeError(f"{subject.name} takes a tensor, got a {kind}: give numpy.array(x)")
    leaves, tree = flatten(inputs, {})
    leaves = [unwrap(leaf) for leaf in leaves]
    places = tuple(i for i, leaf in enumerate(leaves) if owner_of(leaf) is not None)
    # Floats stand for tensors only if no tensor is given.
    if not places:
        leaves = [np.asarray(leaf) if isinstance(leaf, float) else leaf for leaf in leaves]
        places = tuple(i for i, leaf in enumerate(leaves) if owner_of(leaf) is not None)
    if not places:
        refuse_unusable(*map(type, leaves))
        raise RuleTypeError(f"{subject.name} got no tensor to be checked with; pass arrays")
    owner = backend_among(leaves[i] for i in places)
    for i in places:
        leaves[i] = np.asarray(backend_of(leaves[i]).tensors.to_numpy(leaves[i]))
    names = positional_names(subject.function.parameters) if subject.function else ["x"]
    return Inputs(tuple(leaves), tree, places, names, owner)


def numbers_with_gradient(
    call: Callable[..., Any], backend: Backend, arguments: Arguments, names: Sequence[str]
) -> dict[int, str]:
    """Return the places and names of the plain numbers among the arguments of a call that have a
    gradient: it shows only for tensors in their place, so that nothing compares it.

    Args:
        names: those of the positional parameters.
    """
    # Tensors make a form of their own, which is not to be the latest of the caller's Function.
    call = Function(call.recipe, call, prove=False) if isinstance(call, Function) else call
    paths, found = name_paths([*names], arguments.tree), dict[int, str]()
    dtype = next((a.dtype for a in arguments.arrays if is_float_array(a)), np.dtype("float64"))
    for place, leaf in enumerate(arguments.leaves):
        if isinstance(leaf, bool) or not isinstance(leaf, int | float | np.floating):
            continue
        leaves = replace_at(arguments.leaves, [place], [np.asarray(leaf, dtype)])
        places = (*arguments.places, place)
        # What takes no tensor there, as what a framework fixes, has no gradient of it.
        with suppress(Exception), arguments.mode(backend), ignoring_warnings():
            with_tensor = replace(arguments, leaves=tuple(leaves), places=places)
            gradient = with_tensor.differentiate(call, backend, cotangent)[1][-1]
            # Zeros are none: a framework makes them of None, which code returns for constants.
            if gradient is not None and np.any(backend.tensors.to_numpy(gradient)):
                found[place] = paths[place]
    return found


def not_compared(numbers: Mapping[int, str]) -> str:
    """Return which plain numbers have a gradient that is not compared, as a remark; "" if none."""
    kind = "a plain number" if len(numbers) == 1 else "plain numbers"
    remark = f'({kind}; give "scalar" on the command line, or an array)'
    return f"not compared: {', '.join(numbers.values())} {remark}" if numbers else ""


def precision(backend: Backend, dtype: str) -> AbstractContextManager[Any]:
    return nullcontext() if backend.tensors.precision is None else backend.tensors.precision(dtype)


# --- custom gradients of somebody else, as they were found ----------------------------------------


def find_original(obj: Any, copies: bool = False) -> Subject:
    """Return somebody else's custom gradient, or a function of tensors, as it was found.

    A class that is not a custom gradient is replaced by its instance, made without arguments.

    Args:
        copies: see `xg.Capture`.
    """
    custom = find_custom(obj)
    if custom is not None:
        backend, parts = custom
        function = as_function(backend.name, obj, parts, copies=copies)
        imported_as = function.recipe.imported
        call = obj if imported_as is None else imported_as.apply
        return Subject(function.name, call, function, homes=(backend,), is_custom=True)
    if isinstance(obj, type):
        try:
            obj = obj()
        except Exception as error:
            raise MultigradError(
                f"{obj.__name__} is a class that cannot be made without arguments ({error}); name "
                "an object of it"
            ) from error
    if not callable(obj):
        is_module = isinstance(obj, ModuleType)
        hint = f"; multigrad audit {obj.__name__} audits all that it defines" if is_module else ""
        raise RuleTypeError(
            "expected a custom gradient, a function of tensors, a rule or its name, got a "
            f"{type(obj).__name__}{hint}"
        )
    name = name_of(obj)
    recipe = recipe_of_pair(obj, options=Options(copies=copies))
    return Subject(name, obj, Function(recipe, obj), homes=tuple(_homes(obj, recipe.dialect())))


def arguments_of(original: Subject) -> Sequence[Any] | None:
    """Return the parameters that a call must fill; None if they are unknown."""
    signature = original.function.parameters or signature_of(original.call)
    if signature is None:
        return None
    positional = (p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD)
    return [p for p in positional if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]


def _homes(obj: Any, dialect: str) -> Iterator[Backend]:
    # Tensors that it holds decide alone; then its class, its code, and what is imported.
    if name := getattr(obj, "home_of_tensors", ""):
        yield load_backend(name)
        return
    roots = [base.__module__.partition(".")[0] for base in type(obj).__mro__]
    likely = [backend for backend in in_use() if backend.name in roots]
    yield from likely
    for backend in homes_of_dialect(dialect):
        if backend not in likely and backend.autodiff.vjp is not None:
            yield backend


# --- one run --------------------------------------------------------------------------------------
# On a backend, or as its graphs mean it. What compares runs gives each of them the same cotangents.


Results = dict[str, Any]
Cotangents = Callable[[int, tuple[int, ...]], Array]  # of the n-th output, by its shape


def read_arguments(inputs: Sequence[Any]) -> Arguments:
    leaves, tree = flatten(tuple(inputs), {})
    arrays = tuple(map(as_array, leaves))
    places = (i for i, leaf in enumerate(arrays) if isinstance(leaf, np.ndarray))
    return Arguments(arrays, tree, tuple(places))


def as_array(value: Any) -> Any:
    """Return a framework's tensor as an array, and anything else unchanged."""
    if isinstance(value, np.generic):
        return value
    owner = owner_of(value)
    return value if owner is None else np.asarray(owner.tensors.to_numpy(value))


def run_arrays(
    call: Callable[..., Any], backend: Backend, inputs: Sequence[Any], cotangents: Cotangents
) -> tuple[list[Array], list[Array | None]]:
    """Return the outputs that are tensors, and the gradients of the arrays among the inputs."""
    # No precision mode is entered here: the caller has chosen it.
    outputs, gradients = read_arguments(inputs).differentiate(call, backend, cotangents)
    arrays = [_to_array(backend, each) for each in outputs if owner_of(each) is not None]
    return arrays, [_to_array(backend, each) for each in gradients]


def run(
    call: Callable[..., Any],
    backend: Backend,
    inputs: Sequence[Any],
    *,
    cotangents: Cotangents | None = None,
    vjp: Callable[..., Any] | None = None,
) -> Results:
    """Return outputs, and gradients of the float tensors among the inputs, by name."""
    given = read_arguments(inputs)
    with given.mode(backend), np.errstate(all="ignore"):
        outputs, gradients = given.differentiate(call, backend, cotangents or cotangent, vjp=vjp)
        arrays = [_to_array(backend, each) for each in outputs]
        gradient_arrays = [_to_array(backend, each) for each in gradients]
    return _name(arrays, gradient_arrays, given.arrays)


def run_compiled(call: Callable[..., Any], backend: Backend, inputs: Sequence[Any]) -> Results:
    """Return the same as `run`, by one program of the framework's compiler."""
    arguments, plain = read_arguments(inputs), []

    def run_all(*tensors: Any) -> list[Any]:
        outputs, gradients = arguments.differentiate(call, backend, cotangent, tensors)
        values = [*outputs, *gradients]
        # Outputs that are no tensors cannot leave the compiled program: this list has them.
        plain[:] = [None if owner_of(each) else (_to_array(backend, each),) for each in values]
        return [each for each in values if owner_of(each)]

    assert backend.compiler.jit is not None
    with arguments.mode(backend), np.errstate(all="ignore"):
        results = backend.compiler.jit(run_all, {})(*arguments.tensors(backend))
        arrays = iter([_to_array(backend, each) for each in results])
        arrays_out = [next(arrays) if each is None else each[0] for each in plain]
    count = len(arrays_out) - len(arguments.places)
    return _name(arrays_out[:count], arrays_out[count:], arguments.arrays)


def run_mapped(
    call: Callable[..., Any], backend: Backend, examples: Sequence[Sequence[Any]]
) -> Results:
    """Return the same as `run` for stacked examples, mapped over by the framework."""
    stacks = optree.tree_map(
        lambda *each: np.stack(each) if isinstance(each[0], np.ndarray) else each[0],
        *map(tuple, examples),
        none_is_leaf=True,
    )
    return run(call, backend, stacks, vjp=backend.modes.mapped)


def run_each(
    call: Callable[..., Any], backend: Backend, examples: Sequence[Sequence[Any]]
) -> Results:
    """Return the same as `run` for one example after another, stacked."""
    count, results = len(examples), []
    for i, example in enumerate(examples):

        def of_example(n: int, shape: tuple[int, ...], i: int = i) -> Array:
            # A part of the stacked cotangent, so that a map over the examples gets the same.
            return cotangent(n, (count, *shape))[i]

        results.append(run(call, backend, example, cotangents=of_example))
    return {
        name: None if first_result is None else np.stack([each[name] for each in results])
        for name, first_result in results[0].items()
    }


def _as_cotangent(n: int, output: Any, backend: Backend, cotangents: Cotangents) -> Any:
    if not is_float_tensor(output):
        return None
    shape = tuple(int(length) for length in output.shape)
    return backend.tensors.from_numpy(as_float(cotangents(n, shape), dtype_name(output.dtype)))


def cotangent(n: int, shape: tuple[int, ...]) -> Array:
    """Return a cotangent for the n-th output in float64, always the same."""
    return np.asarray(np.random.default_rng((SEED, n)).standard_normal(shape))


def ones(n: int, shape: tuple[int, ...]) -> Array:
    return np.ones(shape)


def run_graphs(
    graphs: FunctionGraph,
    given: Mapping[str, Any],
    arrays: Sequence[Any],
    cotangents: Cotangents,
    key: int,
    library: str = "",
) -> tuple[list[Bounded], dict[str, Bounded]]:
    """Return the results of graphs in float64, each with the largest intermediate value: the
    outputs, and the gradients by the inputs' names.

    Args:
        given: floats in float64, and numbers, by name.
        arrays: the inputs in their own dtypes, in which numbers are drawn.
        key: of the draws.
        library: whose signs of vectors to use; "": NumPy's.
    """
    given = dict(given)
    if graphs.is_random:
        given["key"] = random.fold_in(key_from_int(key), 0)
    floats = [each.dtype for each in arrays if is_float_array(each)]
    dtype = floats[0] if floats else np.dtype("float32")
    signs = VectorSigns(library, dtype) if library else None
    outputs = run_bounded(graphs.forward, given, dtype, signs)
    for n, (name, output) in enumerate(zip(graphs.cotangents, outputs, strict=True)):
        given[name] = cotangents(n, np.shape(output.value))
    gradients = run_bounded(graphs.backward, given, dtype, signs)
    return outputs, dict(zip(graphs.wrt, gradients, strict=True))


def _name(outputs: Sequence[Any], gradients: Sequence[Any], arrays: Sequence[Array]) -> Results:
    results: Results = {}
    for n, output in enumerate(outputs):
        results["output" if len(outputs) == 1 else f"output {n}"] = output
    for n, (gradient, array) in enumerate(zip(gradients, arrays, strict=True)):
        if is_float_array(array):  # no gradient is zeros
            results[f"gradient {n}"] = np.zeros_like(array) if gradient is None else gradient
    return results


def _to_array(backend: Backend, value: Any) -> Any:
    if owner_of(value) is not None:
        return np.asarray(backend.tensors.to_numpy(value))
    return np.asarray(value) if isinstance(value, bool | int | float) else None
