"""`xg.override`: rules on the operations that a function calls.

A framework finds what a selector means and intercepts those calls. What is the same in every
framework is here: the rules in force, the selectors that were met, the messages. So is the
interception of what a capture records, which is all there is of NumPy.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
import optree

from ..core.backend.contract import Backend
from ..core.backend.discovery import in_use, load_backend
from ..core.functions.recipe import Options, Recipe, Recorded
from ..core.ir.op import INPUT, Op, format_shape, is_float
from ..core.rules.rule import Rule
from ..core.rules.signature import name_of
from ..core.support.params import P, R
from ..core.trace.trace import Value, is_symbolic_tensor, setting
from ..core.trace.xp import all as xp
from ..engine.capture.foreign_calls import record_call
from ..engine.capture.values.tracer import V
from ..engine.functions.code_recipes import recipe_of_pair
from ..engine.functions.function import Function
from ..engine.trace.code_trace import CodeTrace
from ..errors import (
    GradientError,
    MultigradError,
    RuleError,
    RuleTypeError,
    RuleValueError,
    suggest,
)
from .attribution.composites import Composite
from .attribution.kinds import is_layer_rule
from .gradient_replacement import Replacement, misfit_message, replacement_for
from .selectors import check_row, not_called_message, shown, wrong_rules_message

__all__ = ["Overridden", "override"]


def override(
    function: Callable[P, R], rules: Mapping[Any, str | Rule | Callable[..., Any]] | Composite
) -> Overridden[P, R]:
    """Return a function that computes what `function` computes; where it calls one of these
    operations, the gradient is the rule's.

    Examples:
        >>> def score(x):
        ...     return xp.sum(xp.relu(x) * np.array([1.0, -1.0, 1.0]))
        >>> guided = xg.override(score, {"relu": "guided"})
        >>> x = np.array([2.0, 3.0, -1.0])
        >>> bool(guided(x) == score(x))
        True
        >>> xg.vjp(guided, x)[1](np.array(1.0))[0]
        array([1., 0., 0.])

    Args:
        function: of tensors of jax, TensorFlow, torch, or NumPy (there for `xg.vjp`); also a
            callable object, as a model of flax nnx or equinox is one. It stays as it is. What it
            computes, the framework's transformations do with the result: `jit`, `vmap`, `grad`.
        rules: `{selector: rule}`, or on jax one of `xg.composites`. A selector is an operation by
            name ("relu", "sign") or as the framework's function (`jax.nn.relu`, `tf.nn.relu`), or a
            tuple of these. A rule is a name, a Rule or a function. It acts on the gradient of the
            operation's input.

    Raises:
        RuleTypeError: `rules` is empty or no mapping, or `function` a model that `xg.attach` takes.
        RuleError: a rule is unknown, or needs a param.
        RuleValueError: at a call; the function does not call what a selector means, or calls it in
            a form that cannot be changed. The message names the operations that it calls.
        MultigradError: at a call; the arguments hold tensors of two frameworks.
    """
    return Overridden(function, rules)


class Overridden(Generic[P, R]):
    """A function with rules on the operations that it calls; see `override`.

    Examples:
        >>> guided = xg.override(lambda x: xp.relu(x), {"relu": "guided"})
        >>> guided.rules
        {'relu': 'guided'}
        >>> xg.vjp(guided, np.array([2.0, 3.0]))[1](np.array([1.0, -1.0]))[0]
        array([1., 0.])
    """

    def __init__(self, function: Callable[P, R], rules: Any) -> None:
        check(function, rules)
        self.function = function
        self.rules = dict(rules) if isinstance(rules, Mapping) else rules
        # By framework, as calls meet them.
        self._by_backend: dict[str, Callable[..., Any]] = {}
        self._said = self._named_by_selectors()
        self._read = tuple(self._readings())
        self._captured: Following[Function] | None = None
        functools.update_wrapper(self, function, updated=())
        vars(self).pop("__wrapped__")  # unwrapping would lose the rules

    def __repr__(self) -> str:
        return f"override({self.function!r}, {self.rules!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function's result, with the rules' gradients attached."""
        # First, because a compiler that reads this code can follow nothing below.
        for is_reading, call in self._read:
            if is_reading():
                return call(*args, **kwargs)
        if is_capturing((args, kwargs)):
            return self.captured_form(*args, **kwargs)
        return self._on(self._backend_of(args, kwargs))(*args, **kwargs)

    @property
    def captured_form(self) -> Function:
        """The function as a graph with the rules in it: what NumPy takes, and other captures."""
        if self._captured is None:

            def make(rows: list[tuple[RecordedCall, Replacement]]) -> Function:
                return Function(recipe_of_override(self.function, rows), self.function, True)

            self._captured = Following(self.rules, find, make)
        return self._captured.now()

    def _on(self, backend: Backend) -> Callable[..., Any]:
        overridden = self._by_backend.get(backend.name)
        if overridden is None:
            if backend.autodiff.vjp is None:  # of which no gradient is taken but by `xg.vjp`
                return self.function
            if backend.models.override is None:
                raise RuleTypeError(
                    f"backend {backend.name!r} overrides no functions: call xg.activation(forward, "
                    "rule) instead of the operation"
                )
            overridden = backend.models.override(self.function, self.rules)
            self._by_backend[backend.name] = overridden
        return overridden

    def _readings(self) -> Iterator[tuple[Callable[[], bool], Callable[..., Any]]]:
        # For a compiler that reads our code, if the selectors mean its framework's operations: it
        # cannot read the discovery of backends.
        for backend in in_use():
            readers = [each for each in backend.compiler.read_function if each.reads_code]
            if readers and backend.models.override is not None:
                with suppress(RuleError):
                    yield readers[0].is_reading, self._on(backend)

    def _named_by_selectors(self) -> Backend | None:
        if not isinstance(self.rules, Mapping):
            return None
        parts = [part for part, _ in parts_of(self.rules)]
        # The framework whose functions are among the selectors, if any.
        for backend in in_use():
            is_operation = backend.models.is_operation
            if is_operation is not None and any(map(is_operation, parts)):
                return backend
        return None

    def _backend_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Backend:
        # The framework of the tensors, else of the results; NumPy's arrays are data of any.
        backends = owners((args, kwargs))
        if len(backends) > 1:
            names = " and ".join(sorted(backends))
            raise MultigradError(f"one call mixes tensors of {names}; convert them to one of them")
        if backends:
            return next(iter(backends.values()))
        if self._said is not None:
            return self._said
        # Only a run tells, where no argument and no selector does.
        backends = owners(self.function(*args, **kwargs))
        if len(backends) == 1:
            return next(iter(backends.values()))
        return load_backend("numpy")


def check(function: Any, rules: Any) -> None:
    keras = sys.modules.get("keras")
    holders = [backend.name for backend in in_use() if is_model_of(backend, function)]
    if keras is not None and isinstance(function, keras.Operation):
        holders.append("keras")
    if holders:
        raise RuleTypeError(
            f"{type(function).__qualname__} is a model of {holders[-1]}: "
            "xg.attach(model, {selector: rule}) puts rules on it"
        )
    if not callable(function):
        raise RuleTypeError(f"expected a function, got {function!r:.60}")
    if isinstance(rules, Mapping):
        if not rules:
            raise RuleTypeError(wrong_rules_message(rules))
        for selector, rule in rules.items():
            check_row(selector, rule)
            if not is_layer_rule(rule):
                replacement_for(rule)
    elif not isinstance(rules, Composite):
        raise RuleTypeError(wrong_rules_message(rules))


def is_model_of(backend: Backend, function: Any) -> bool:
    return backend.models.is_model is not None and backend.models.is_model(function)


def owners(tree: Any) -> dict[str, Backend]:
    """Return the frameworks of the tensors in a tree, NumPy aside, by name."""
    backends: dict[str, Backend] = {}
    leaves: list[Any] = optree.tree_leaves(tree, none_is_leaf=True)
    for backend in in_use():
        if backend.name == "numpy":
            continue
        tensors = leaves if backend.models.leaves is None else backend.models.leaves(tree)
        if any(isinstance(leaf, backend.tensors.types) for leaf in tensors):
            backends[backend.name] = backend
    return backends


def is_capturing(tree: Any) -> bool:
    return any(isinstance(leaf, Value) for leaf in optree.tree_leaves(tree, none_is_leaf=True))


# --- operations that a function calls -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Meant:
    """The meaning of a selector of operations.

    Attributes:
        selector: as it was given.
        name: an operation's, as its framework knows it.
    """

    selector: Any
    name: str

    @property
    def said(self) -> str:
        return self.selector if isinstance(self.selector, str) else self.name


M = TypeVar("M", bound=Meant)
A = TypeVar("A")


class SelectedCalls(Generic[M]):
    """The rules on the operations that a function calls, and which of them a call has met.

    Attributes:
        name: the function's.
        rows: what each selector means, with `over` of its rule.
        met: those that were met.
        names: the operations that were called, as the framework names them.
    """

    def __init__(self, name: str, rows: Iterable[tuple[M, Any]]) -> None:
        self.name = name
        self.rows = tuple(rows)
        self.met: set[M] = set()
        self.names: set[str] = set()

    def check(self) -> None:
        for call, _ in self.rows:
            if call not in self.met:
                self.refuse_unmet(call, self.names)

    def refuse_unmet(self, meant: M, called: Iterable[str]) -> NoReturn:
        raise RuleValueError(not_called_message(f"function {self.name!r}", meant.said, called))


class Following(Generic[A]):
    """An object made for the operations that selectors mean, each with `over` of its rule.

    It is made again when a rule's name means another rule than before.

    Args:
        rules: a rule by selector, or by several in a tuple.
        find: the meaning of a selector.
        make: makes the object.
        look_up: what `make` gets for a rule, the same object for the same rule.

    Raises:
        RuleTypeError: the rules are those of a composite, or read layers.
    """

    def __init__(
        self,
        rules: Any,
        find: Callable[[Any], M],
        make: Callable[[list[tuple[M, Any]]], A],
        look_up: Callable[[Any], Any] = replacement_for,
    ) -> None:
        parts = parts_of(rules)
        self._look_up = look_up
        self._meant = [find(part) for part, _ in parts]
        self._rules = [rule for _, rule in parts]
        self._make: Callable[[Any], A] = make
        self._known: tuple[list[Any], A] | None = None

    def now(self) -> A:
        replacements = [self._look_up(rule) for rule in self._rules]
        latest = self._known
        if latest is None or latest[0] != replacements:
            outcome = self._make(list(zip(self._meant, replacements, strict=True)))
            latest = self._known = replacements, outcome
        return latest[1]


def parts_of(rules: Any) -> list[tuple[Any, Any]]:
    """Return each selector with its rule, the parts of a tuple one by one."""
    if isinstance(rules, Composite):
        raise RuleTypeError(
            f"composite {rules.name!r} reads the layers of a model: xg.attach(model, composite), "
            "or xg.override of a function of jax"
        )
    return [
        (part, rule)
        for selector, rule in rules.items()
        for part in (selector if isinstance(selector, tuple) else (selector,))
    ]


def refuse_operation(selector: Any, library: str, names: Iterable[str]) -> NoReturn:
    """Raise for a selector that means no operation of a library, which has these."""
    if isinstance(selector, str):
        hint = suggest(selector, names)
        raise RuleValueError(f"{library} has no operation {selector!r}{hint}")
    raise RuleTypeError(
        f"{selector!r:.60} selects nothing: expected a name or a function of {library}"
    )


def one_input(name: str, fitting: Sequence[int], shape: Any, wish: str) -> int:
    """Return the position of the operand that a rule acts on: the one of the result's shape."""
    if len(fitting) > 1:
        raise RuleValueError(
            f"operation {name!r} has {len(fitting)} inputs of shape {shape}; a rule acts on one: "
            f"select {wish}"
        )
    return fitting[0]


# --- a function whose operations get rules while it is captured -----------------------------------
@dataclass(frozen=True, slots=True)
class RecordedCall(Meant):
    """The meaning of a selector when a function is captured.

    Attributes:
        op: the op that the function records, if it is one: operators and methods record it too.
        function: the function itself, where it records several.
    """

    op: Op | None
    function: Any


def recipe_of_override(
    function: Callable[..., Any], rows: Sequence[tuple[RecordedCall, Replacement]]
) -> Recipe:
    """Return the recipe of a function without a backward, and of the rules on what it calls."""
    plain = recipe_of_pair(function, options=Options(native=False))
    record_plain = plain.record
    assert record_plain is not None

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        calls = RecordedCalls(plain.name, rows)
        with setting(trace, overriding=calls):
            result = record_plain(trace, args, kwargs)
        calls.check()
        return result

    def copied(copy: Callable[[Any], Any]) -> Recipe:
        return recipe_of_override(copy(function), rows)

    return replace(plain, record=record, copied=copied)


class RecordedCalls(SelectedCalls[RecordedCall]):
    """Rules on what a capture records; lives while one function is recorded."""

    def record(self, trace: CodeTrace, op: Op, operands: tuple[Any, ...], again: Any) -> Any:
        """Return an op's result, whose gradient is the rule's; None: no rule is on it."""
        self.names.add(op.name)
        row = next((row for row in self.rows if row[0].op is op), None)
        return None if row is None else self._replaced(trace, *row, operands, again)

    def call(
        self, trace: CodeTrace, library: str, function: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Do the same for a function of a library that records several ops."""

        def again(*operands: Any) -> Any:
            return record_call(library, function, operands, kwargs, trace=trace)

        row = next((row for row in self.rows if row[0].function is function), None)
        return None if row is None else self._replaced(trace, *row, args, again)

    def _replaced(
        self,
        trace: CodeTrace,
        call: RecordedCall,
        rule: Replacement,
        operands: tuple[Any, ...],
        call_again: Callable[..., Any],
    ) -> Any:
        tensors = [i for i, each in enumerate(operands) if is_tensor(each)]
        if not tensors:
            return None
        if len(tensors) > 1:
            raise RuleValueError(
                f"operation {call.said!r} of {self.name!r} has {len(tensors)} inputs; a rule acts "
                "on one"
            )
        position = tensors[0]
        tin = operands[position]
        # Without rules meanwhile, or the operation would meet its own rule.
        with setting(trace, overriding=None):
            out = call_again(*operands[:position], xp.stop_gradient(tin), *operands[position + 1 :])
            if not is_tensor(out):
                return out
            self.met.add(call)
            out_shape, shape = out.node.type.shape, tin.node.type.shape
            if isinstance(out_shape, tuple) and out_shape != shape:  # a reduction
                subject = f"operation {call.said!r} of {self.name!r}"
                shapes = format_shape(shape), format_shape(out_shape)
                raise GradientError(misfit_message(rule.name, subject, *shapes))
            return rule(tin, out)


def is_tensor(value: Any) -> bool:
    return is_symbolic_tensor(value) and is_float(value.node.type)


def find(selector: Any) -> RecordedCall:
    function = selector
    if isinstance(selector, str):
        # NumPy's own name for it counts first.
        function = getattr(np, selector, None) or getattr(xp, selector, None)
    if not callable(function):
        refuse_operation(selector, "NumPy", [*dir(np), *xp.__all__])
    return RecordedCall(selector, shown(selector), op_of(function), function)


def op_of(function: Callable[..., Any]) -> Op | None:
    """Return the op that a function applies to an array; None if it records others."""
    trace = CodeTrace(name_of(function), {"ndim": 1}, V, "function", xp)
    x = trace.input("x", INPUT)
    ops: list[Op] = []
    most_args = getattr(function, "nin", 3)  # a ufunc takes what it writes into after its inputs
    # The forms of a call that are tried; one with arguments of a wrong kind raises.
    for args in ((x,), (x, 0), (x, x), (x, 0, 1)):
        if len(args) > most_args:
            continue
        with suppress(MultigradError, TypeError, ValueError):
            result = function(*args)
            if not isinstance(result, Value):
                continue
            operands = result.node.operands
            if x.node in operands and all(o is x.node or not o.operands for o in operands):
                ops.append(result.node.op)
    # Of several forms the one with the function's own name, else the first.
    same_named = [op for op in ops if op.name == name_of(function)]
    return next(iter((*same_named, *ops)), None)
