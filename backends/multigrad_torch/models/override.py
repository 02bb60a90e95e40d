"""Rules on operations of torch, by a function mode that a model's own methods enter, or a function.

Functions, methods and operators that compute one operation have one name here.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from multigrad.capture.user_code.signature import name_of
from multigrad.models.attribution.kinds import is_layer_rule
from multigrad.models.gradient_replacement import replacement_for
from multigrad.models.override import Following, Meant, refuse_operation
from multigrad.models.selectors import not_called_message

from .. import dynamo
from ..compile.checkpoint_regions import (
    is_first_without_gradients,
    may_run_again,
    noted_regions,
)
from ..versions import COMPILES
from .call_rule import (
    KEYED,
    OWN,
    CallRule,
    is_compiling,
    key_of,
    refuse,
    rule_of_operation,
    stack_length,
)

Tensor: TypeAlias = torch.Tensor
Call = Callable[..., Any]


# --- operations by name ---------------------------------------------------------------------------
# The name used here for an operation, by its other names.
SAME = {
    "truediv": "div", "itruediv": "div", "rtruediv": "div", "divide": "div", "true_divide": "div",
    "rdiv": "div", "multiply": "mul", "subtract": "sub", "rsub": "sub", "negative": "neg",
    "absolute": "abs", "clip": "clamp", "expit": "sigmoid", "mm": "matmul", "invert": "bitwise_not",
    "arctan": "atan", "arcsin": "asin", "arccos": "acos", "arctanh": "atanh", "arcsinh": "asinh",
    "arccosh": "acosh", "arctan2": "atan2", "concat": "cat", "concatenate": "cat", "fix": "trunc",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "swapaxes": "transpose", "swapdims": "transpose", "row_stack": "vstack", "getitem": "getitem",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "floordiv": "floor_divide",
    "mod": "remainder", "log_sigmoid": "logsigmoid", "moveaxis": "movedim",
    **{
        f"{pooling}{n}d_with_indices": f"{pooling}{n}d"
        for pooling in ("max_pool", "adaptive_max_pool") for n in (1, 2, 3)
    },
}  # fmt: skip
HOMES = (torch, torch.Tensor, F, torch.special, torch.linalg, torch.fft)
CALLABLES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


def name_operation(function: Any) -> str:
    name = getattr(function, "__name__", "") or ""
    if isinstance(function, torch._ops.OpOverload):
        name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        word = name[2:-2]
        # `__iadd__` and `__radd__` are add, but `__invert__` is no in-place `nvert`.
        for prefix in ("", "i", "r"):
            plain = SAME.get(word.removeprefix(prefix), word.removeprefix(prefix))
            if word.startswith(prefix) and plain in read_names()[0]:
                return plain
        return SAME.get(word, word)
    for home in ("special_", "linalg_", "fft_"):
        name = name.removeprefix(home)
    name = name.strip("_") or name
    return SAME.get(name, name)


@functools.cache
def read_names() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names in torch's namespaces without the operators', and the operations' names."""
    names = {
        name.rstrip("_")
        for home in HOMES
        for name in dir(home)
        if not name.startswith("_") and isinstance(getattr(home, name, None), CALLABLES)
    }
    names.add("getitem")
    return frozenset(names), frozenset(SAME.get(name, name) for name in names)


def operation_names() -> frozenset[str]:
    return read_names()[1]


@functools.cache
def known_functions() -> dict[Any, str]:
    functions = {
        value: name_operation(value)
        for home in HOMES
        for name in dir(home)
        if is_public(name) and isinstance(value := getattr(home, name, None), CALLABLES)
    }
    operators = {
        value: name_operator(name)
        for name, value in vars(operator).items()
        if isinstance(value, types.BuiltinFunctionType)
    }
    return (
        functions
        | {abs: "abs", pow: "pow"}
        | {value: name for value, name in operators.items() if name}
    )


def name_operator(name: str) -> str | None:
    operation = name_operation(types.SimpleNamespace(__name__=f"__{name.strip('_')}__"))
    return operation if operation in operation_names() else None


def is_public(name: str) -> bool:
    """Return whether a name is public, as those of operators are."""
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def find_operation(selector: Any) -> str | None:
    """Return the operation that a selector means, or None."""
    if isinstance(selector, str):
        return selector if selector in operation_names() else None
    if isinstance(selector, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return name_operation(selector)
    try:
        name = known_functions().get(selector)
    except TypeError:  # no hash
        return None
    return name if name in operation_names() else None


# --- functions of torch that call others ----------------------------------------------------------
HAS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def has_none(*args: Any) -> bool:
    """Return False, as `has_torch_function` in a function that is seen through."""
    return False


@functools.cache
def see_through(function: types.FunctionType) -> Call:
    """Return one of torch's Python functions so that modes see the calls within it."""
    # Without `__name__`, or Dynamo would read the globals from the module of that name.
    names = {**function.__globals__, **dict.fromkeys(HAS, has_none)}
    del names["__name__"]
    seen = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    seen.__kwdefaults__ = function.__kwdefaults__
    return seen


def let_dynamo_dispatch(functions: Iterable[Any]) -> None:
    """Let Dynamo ask modes about functions."""
    if COMPILES:
        # Dynamo asks only about those that torch lists as overridable (torch 2.13): hardswish, tanh
        # and relu_ are not among them.
        from torch._dynamo.variables.torch import get_overridable_functions

        get_overridable_functions().update(functions)


def functions_calling(operations: Collection[str]) -> tuple[types.FunctionType, ...]:
    """Return torch's Python functions that call one of some operations internally."""
    return tuple(
        function
        for function, names in _callees().items()
        if not names.isdisjoint(operations) and name_operation(function) not in operations
    )


@functools.cache
def _callees() -> dict[types.FunctionType, set[str]]:
    # The operations that each Python function of torch names in its code.
    called = {
        value: {SAME.get(name.rstrip("_"), name.rstrip("_")) for name in value.__code__.co_names}
        for home in (F, torch.functional)
        for value in vars(home).values()
        if isinstance(value, types.FunctionType)
    }
    helpers = {value.__name__: names for value, names in called.items()}
    grown = True
    # Then also those in what it calls, until nothing is added.
    while grown:
        grown = False
        for names in called.values():
            more = set().union(*(helpers[n] for n in names & helpers.keys())) - names
            names |= more
            grown = grown or bool(more)
    return {
        value: names
        for value, names in called.items()
        if value.__module__ in (F.__name__, torch.functional.__name__)
        and not value.__name__.startswith("_")
    }


# --- the mode -------------------------------------------------------------------------------------
stack_at = torch._C._get_function_stack_at
# nn.ReLU6 calls hardtanh with these limits.
HARDTANH, LIMITS = "hardtanh", (0.0, 6.0)


@dataclass(frozen=True, slots=True)
class KnownFunction:
    """A function of torch that a mode reacts to.

    Attributes:
        name: its operation.
        through: its code with calls that the mode sees, if it calls operations internally.
        writes: whether its result lies in its input.
        inplace_at: the position of the argument `inplace`.
    """

    name: str
    through: Call | None = None
    writes: bool = False
    inplace_at: int = 99


def know(name: str, function: Any) -> KnownFunction:
    own = function.__name__
    writes = own.endswith("_") and not own.endswith("__")
    writes = writes or (own.startswith("__i") and own != "__invert__")
    code = getattr(function, "__code__", None)
    taken = code.co_varnames[: code.co_argcount] if code is not None else ()
    at = taken.index("inplace") if "inplace" in taken else 99
    return KnownFunction(name, writes=writes, inplace_at=at)


class OperationMode(TorchFunctionMode):
    """Applies rules to calls of some operations, within methods of the models that it acts on.

    torch suspends the mode while it handles a call, so nothing is seen twice.

    Attributes:
        rules: by operation.
        seen: the operations that were called, until a call of the whole model has ended.
        recorded: those whose rules acted while gradients were recorded, as long as there is `seen`.
        hits: how often each rule acted; in compiled code, how often it was traced.
        around: the modes of models around this one that have rules on some of its operations.
        subject: the model or function that the mode is for, in messages.
        advise: returns what a message about an operation that was not called ends with.
        roots: returns the models that the mode is for: one, and its copies.
    """

    def __init__(self, rules: Mapping[str, CallRule], subject: str = "the model") -> None:
        self.rules = dict(rules)
        self.subject = subject
        self.around: tuple[OperationMode, ...] = ()
        self.roots: Callable[[], Sequence[Any]] = tuple
        self.advise: Callable[[str], str] = say_nothing
        self.hits = {name: 0 for name, rule in self.rules.items() if rule is not OWN}
        self.seen: set[str] | None = set()
        self.recorded: set[str] = set()
        self.key = key_of(self)
        self.table = self._tabulate()
        by_name = [
            KnownFunction(name, writes=writes) for name in self.rules for writes in (False, True)
        ]
        self.rows = {str(i): row for i, row in enumerate({*self.table.values(), *by_name})}
        self.row_names = {row: key for key, row in self.rows.items()}
        let_dynamo_dispatch(self.table)

    def _tabulate(self) -> dict[Any, KnownFunction]:
        table: dict[Any, KnownFunction] = {}
        names = set(self.rules)
        if "relu6" in names:
            # A call of hardtanh may be a relu6, depending on its limits.
            names.add(HARDTANH)
        for function, name in known_functions().items():
            if name in names:
                table[function] = know(name, function)
        for name in names:
            for own in (name, f"{name}_"):
                packet = getattr(torch.ops.aten, own, None)
                if packet is not None:
                    overloads = [getattr(packet, each) for each in packet.overloads()]
                    table |= dict.fromkeys([packet, *overloads], know(name, packet))
        for function in functions_calling(names):
            table[function] = KnownFunction("", through=see_through(function))
        return table

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        known = None
        if not is_compiling():
            known = self.table.get(func)
        # Dynamo makes new objects of some functions, so traced code cannot use them as keys.
        elif row := note_seen(self.key, func):
            known = self.rows[row]
        if known is None:
            if self.seen is not None and not is_compiling():
                self.seen.add(name_operation(func))
            if func is torch.Tensor.unflatten:  # Dynamo (torch 2.13) cannot trace it
                func = torch.unflatten
            return func(*args, **kwargs)
        if known.through is not None:
            with self:
                return known.through(*args, **kwargs)
        name = known.name
        if name == HARDTANH:
            if limits_of(args, kwargs) == LIMITS and "relu6" in self.rules:
                name = "relu6"
            elif name not in self.rules:
                return func(*args, **kwargs)
        rule = self.rules[name]
        if rule is not OWN:
            self.note_hit(name)
        in_place = known.writes or (
            kwargs.get("inplace") is True
            or (len(args) > known.inplace_at and args[known.inplace_at] is True)
        )
        # An outer mode, of another model, must not see what our own code calls.
        if stack_length():
            with torch._C.DisableTorchFunction():
                return rule.call(name, func, in_place, args, kwargs)
        return rule.call(name, func, in_place, args, kwargs)

    def note_hit(self, name: str) -> None:
        if is_compiling():
            note_hit(self.key, name)
            return
        self.hits[name] += 1
        if self.seen is not None and (torch.is_grad_enabled() or is_first_without_gradients()):
            self.recorded.add(name)
        if may_run_again():
            self.keep_in_regions()

    def count(self) -> int:
        """Return how often its rules have acted, or were traced."""
        return count_hits(self.key) if is_compiling() else sum(self.hits.values())

    def keep_in_regions(self) -> None:
        """Let the regions around this call, which run again in backward, do so within this mode."""
        for region in noted_regions():
            if not holds(region.function, self):
                region.function = Within(region.function, self)

    def say_missing(self) -> str:
        """Return an error message after a call of the whole; "" if every rule acted."""
        missing = next((name for name, count in self.hits.items() if not count), None)
        if missing is not None:
            called = (self.seen or set()) - {"", "get", "set"}
            return not_called_message(self.subject, missing, called, self.advise(missing))
        if self.seen is None or not torch.is_grad_enabled():
            return ""
        missing = next((name for name in self.hits if name not in self.recorded), None)
        if missing is None:
            # Every rule has acted: from now on calls of other operations are not noted.
            self.seen = None
            return ""
        return (
            f"{self.subject} calls operation {missing!r} only where torch takes no gradient, so "
            "its rule acts nowhere: inside an autograd.Function, whose backward is its own, or "
            "under torch.no_grad. Select the layer that does so"
        )


def limits_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    low = args[1] if len(args) > 1 else kwargs.get("min_val", -1.0)
    high = args[2] if len(args) > 2 else kwargs.get("max_val", 1.0)
    return low, high


def say_nothing(operation: str) -> str:
    return ""


def check_met(mode: OperationMode) -> None:
    """Raise, after a call of the whole, if a rule of the mode acted nowhere."""
    message = say_missing(mode.key) if is_compiling() else mode.say_missing()
    if message:
        refuse(message)


# --- what Dynamo runs while it traces -------------------------------------------------------------
@dynamo.assume_constant_result
def note_hit(key: str, name: str) -> bool:
    KEYED[key].hits[name] += 1
    KEYED[key].recorded.add(name)
    return True


@dynamo.assume_constant_result
def note_seen(key: str, function: Any) -> str:
    """Note an operation in traced code; return the key of the mode's row for it, or ""."""
    mode, name = KEYED[key], name_operation(function)
    known = mode.table.get(function)
    if known is None and name in mode.rules:
        known = KnownFunction(name, writes=know(name, function).writes)
    if known is None and mode.seen is not None:
        mode.seen.add(name)
    return "" if known is None else mode.row_names[known]


@dynamo.assume_constant_result
def say_missing(key: str) -> str:
    message: str = KEYED[key].say_missing()
    return message


@dynamo.assume_constant_result
def count_hits(key: str) -> int:
    return sum(KEYED[key].hits.values())


# --- regions that run again -----------------------------------------------------------------------
class Within:
    def __init__(self, function: Call, mode: OperationMode) -> None:
        self.function = function
        self.mode = mode

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_entered(self.mode):
            return self.function(*args, **kwargs)
        with self.mode:
            return self.function(*args, **kwargs)


def holds(function: Any, mode: OperationMode) -> bool:
    while isinstance(function, Within):
        if function.mode is mode:
            return True
        function = function.function
    return False


def is_entered(mode: OperationMode) -> bool:
    for i in range(stack_length()):  # noqa: SIM110 (a third of the time of `any`)
        if stack_at(i) is mode:
            return True
    return False


def find_inner(mode: OperationMode) -> OperationMode | None:
    """Return the innermost entered mode of a model that lies within the model of this mode."""
    for i in range(stack_length() - 1, -1, -1):
        entered = stack_at(i)
        if isinstance(entered, OperationMode):
            for each in entered.around:
                if each is mode:
                    return entered
    return None


# --- xg.override for functions of torch -----------------------------------------------------------
def override_calls(function: Call, rules: Any) -> Call:
    """Return a function with rules on the operations that it calls."""

    def make(rows: list[tuple[Meant, Any]]) -> OperationMode:
        acting = {meant.name: rule_of_operation(meant.name, rule) for meant, (rule, _) in rows}
        return OperationMode(acting, f"function {name_of(function)!r}")

    following = Following(rules, find, make, look_up)
    # Dynamo can follow no look-up of a name: what it traces has the mode of the last eager look.
    mode = following.now()

    @functools.wraps(function)
    def overridden(*args: Any, **kwargs: Any) -> Any:
        nonlocal mode
        if not is_compiling():
            mode = following.now()
        if is_entered(mode):
            return function(*args, **kwargs)
        with mode:
            outputs = function(*args, **kwargs)
        check_met(mode)
        return outputs

    return dynamo.apart(overridden)


def find(selector: Any) -> Meant:
    operation = find_operation(selector)
    if operation is None:
        refuse_operation(selector, "torch", operation_names())
    return Meant(selector, operation)


def look_up(rule: Any) -> tuple[Any, Any]:
    """Return a rule with what it means now; one that reads weights is what it is."""
    return rule, rule if is_layer_rule(rule) else replacement_for(rule)
