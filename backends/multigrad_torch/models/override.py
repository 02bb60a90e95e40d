"""Rules on operations of torch: a function mode that methods of a model enter, or `xg.override`.

torch asks the mode (`OperationMode`) about each call of a function of torch. Those of an operation
with a rule run by the rule; torch's Python functions that call such an operation are seen through.
Traced code cannot hold the mode, so it names the mode by a key.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from multigrad.core.rules.signature import name_of
from multigrad.models.attribution.composites import Composite
from multigrad.models.attribution.kinds import is_layer_rule
from multigrad.models.gradient_replacement import replacement_for
from multigrad.models.override import Following, Meant, refuse_operation
from multigrad.models.selectors import (
    GAP,
    Row,
    Rules,
    multiplies,
    not_called_message,
    shares_relevance,
    warn_of_gaps,
)

from ..compile.checkpoint_regions import note_regions
from ..core import dynamo
from ..core.state import transforms_active
from ..core.versions import COMPILES
from .call_rule import (
    KEYED,
    OWN,
    CallRule,
    WeightRule,
    find_activations,
    is_compiling,
    key_of,
    refuse,
    rule_of_operation,
    stack_length,
)
from .layer_kinds import OPERATIONS
from .regions import is_around_region, is_first_without_gradients, note_acting

Call = Callable[..., Any]
Tensor: TypeAlias = torch.Tensor
MOST_NODES = 32  # of autograd, behind a tensor that is computed from parameters alone
ADVICE = "A product has a rule as a layer, F.linear or a convolution"


# --- the mode -------------------------------------------------------------------------------------
stack_at = torch._C._get_function_stack_at
NOWHERE = 99  # the position of an argument that a function does not take
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
    inplace_at: int = NOWHERE


def describe(name: str, function: Any) -> KnownFunction:
    """Return the facts that a mode needs of a function that computes an operation."""
    own_name = function.__name__
    writes = own_name.endswith("_") and not own_name.endswith("__")
    writes = writes or (own_name.startswith("__i") and own_name != "__invert__")
    code = getattr(function, "__code__", None)
    parameters = code.co_varnames[: code.co_argcount] if code is not None else ()
    position = parameters.index("inplace") if "inplace" in parameters else NOWHERE
    return KnownFunction(name, writes=writes, inplace_at=position)


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
        given: the rules as they were given, if they share out relevance or are a composite's.
        composite: whose rules they are, if they are one's.
        notes_gaps: whether operations without a rule are noted that multiply relevance, as a
            product in code, `h @ self.fc.weight.T`, which belongs to no layer: by the first eager
            call of the whole with a gradient for its input, for the table and a warning.
        is_noting: whether such a call runs.
        advise: returns what a message about an operation that was not called ends with.
        roots: returns the models that the mode is for: one, and its copies.
        entered_by: the identities of what enters it: regions in which they are noted lie around.
        key: by which traced code finds the mode.
        table: by function, what the mode reacts to.
        rows_of_calls: of the handle's table, by operation and what it is called with.
        rows: the values of the table by text, which traced code can hold; row_names: the reverse.
    """

    def __init__(
        self,
        rules: Mapping[str, CallRule],
        subject: str = "the model",
        given: Rules | None = None,
    ) -> None:
        self.rules = dict(rules)
        self.subject = subject
        self.given = given or {}
        self.composite = given if isinstance(given, Composite) else None
        self.notes_gaps = shares_relevance(self.given)
        self.is_noting = False
        self.around: tuple[OperationMode, ...] = ()
        self.roots: Callable[[], Sequence[Any]] = tuple
        self.advise: Callable[[str], str] = lambda operation: ""
        self.rows_of_calls: dict[tuple[str, str], Row] = {}
        self.hits = {name: 0 for name, rule in self.rules.items() if rule is not OWN}
        self.seen: set[str] | None = set()
        self.recorded: set[str] = set()
        self.entered_by = {id(self)}
        self.key = key_of(self)
        self.table = self._tabulate()
        # Of functions that are not in the table, as Dynamo makes new objects of some.
        by_name = [
            KnownFunction(name, writes=writes) for name in self.rules for writes in (False, True)
        ]
        self.rows = {str(i): row for i, row in enumerate({*self.table.values(), *by_name})}
        self.row_names = {row: key for key, row in self.rows.items()}
        if COMPILES:
            # Dynamo asks only about those that torch (2.13) lists as overridable, not about tanh.
            from torch._dynamo.variables.torch import get_overridable_functions

            get_overridable_functions().update(self.table)

    def _tabulate(self) -> dict[Any, KnownFunction]:
        table: dict[Any, KnownFunction] = {}
        names = set(self.rules)
        if "relu6" in names:
            # A call of hardtanh may be a relu6, depending on its limits.
            names.add(HARDTANH)
        for function, name in known_functions().items():
            if name in names:
                table[function] = describe(name, function)
        for name in names:
            for aten_name in (name, f"{name}_"):
                packet = getattr(torch.ops.aten, aten_name, None)
                if packet is not None:
                    overloads = [getattr(packet, each) for each in packet.overloads()]
                    table |= dict.fromkeys([packet, *overloads], describe(name, packet))
        for function in functions_calling(names):
            table[function] = KnownFunction("", through=see_through(function))
        return table

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        known_function = None
        if not is_compiling():
            known_function = self.table.get(func)
        # Dynamo makes new objects of some functions, so traced code cannot use them as keys.
        elif row := ask_mode(self.key, "note_seen", func):
            known_function = self.rows[row]
        if known_function is None:
            if func is torch.Tensor.unflatten:  # Dynamo (torch 2.13) cannot trace it
                func = torch.unflatten
            out = func(*args, **kwargs)
            if self.seen is not None and not is_compiling():
                self.note_call(func, args, kwargs, out)
            return out
        if known_function.through is not None:
            with self:
                return known_function.through(*args, **kwargs)
        name = known_function.name
        if name == HARDTANH:
            low = args[1] if len(args) > 1 else kwargs.get("min_val", -1.0)
            high = args[2] if len(args) > 2 else kwargs.get("max_val", 1.0)
            if (low, high) == LIMITS and "relu6" in self.rules:
                name = "relu6"
            elif name not in self.rules:
                return func(*args, **kwargs)
        rule = self.rules[name]
        if rule is not OWN:
            self.note_hit(name, args, kwargs)
        in_place = known_function.writes or (
            kwargs.get("inplace") is True
            or (len(args) > known_function.inplace_at and args[known_function.inplace_at] is True)
        )
        # An outer mode, of another model, must not see what our own code calls.
        if stack_length():
            with torch._C.DisableTorchFunction():
                return rule.call(name, func, in_place, args, kwargs)
        return rule.call(name, func, in_place, args, kwargs)

    def start(self, arguments: Any) -> None:
        """Prepare for an eager call of the whole with these arguments."""
        if self.seen is not None and (self.notes_gaps or self.composite is not None):
            tensors = [x for x in pytree.tree_leaves(arguments) if isinstance(x, Tensor)]
            self.is_noting = not transforms_active() and any(x.requires_grad for x in tensors)

    def note_call(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Note a call, outside compiled code, of an operation without a rule, and what it gave."""
        if self.seen is not None:
            self.seen.add(name_operation(func))
        results = pytree.tree_leaves(out) if self.is_noting else ()
        if any(getattr(each, "requires_grad", False) for each in results):
            is_reversed = getattr(func, "__name__", "").strip("_") == "rsub"
            self.note_gap(name_operation(func), args[::-1] if is_reversed else args, kwargs)

    def note_hit(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if is_compiling():
            ask_mode(self.key, "note_traced", name)
            return
        self.hits[name] += 1
        if self.seen is not None and (torch.is_grad_enabled() or is_first_without_gradients()):
            self.recorded.add(name)
        # Regions that began in this mode run again in backward: within it, too.
        for region in filter(self.is_within, note_regions()):
            region.modes.setdefault(self, lambda: nullcontext() if is_entered(self) else self)
        # Calls within a layer that has a rule itself are on constants.
        if not self.is_noting or not any(
            x.requires_grad for _, x, _ in find_activations(name, args, kwargs)
        ):
            return
        rule, row = self.rules[name], OPERATIONS.get(name)
        read = None if row is None or "out" in kwargs else row.read
        if not isinstance(rule, WeightRule) or (read and read(*args, **kwargs)):
            self.note_ruled(name, rule)
        else:
            self.note_gap(name, args, kwargs)

    def note_ruled(self, name: str, rule: CallRule) -> None:
        """Note a call on which its rule acts."""

    def note_gap(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note an operation without a rule if it may multiply relevance."""
        if not self.notes_gaps or not multiplies(name, activations=2):
            return
        tensors = [x for x in pytree.tree_leaves((args, dict(kwargs))) if isinstance(x, Tensor)]
        parameters = {id(x): parameter_of(x) for x in tensors}
        activations = [x for x in tensors if x.requires_grad and parameters[id(x)] is None]
        negates = name == "sub" and bool(activations) and activations[0] is not (*args, None)[0]
        if not multiplies(name, len(activations), negates):
            return
        names = [
            name
            for root in self.roots()
            for name, each in root.named_parameters()
            if any(each is parameter for parameter in parameters.values())
        ]
        words = ", ".join(names) or ("an activation", "activations")[len(activations) > 1]
        self.rows_of_calls[name, words] = Row(name, "operation", GAP, words)

    def warn(self) -> None:
        level = 8 if self.roots() else 7  # torch has two frames around a module's forward
        warn_of_gaps(self.given, self.rows_of_calls.values(), ADVICE, stacklevel=level)

    def is_within(self, region: Any) -> bool:
        """Return whether a region was begun in the mode; one around it holds other code, too."""
        return all(acting not in self.entered_by for acting, _ in region.acted)

    def note_traced(self, name: str) -> None:
        self.hits[name] += 1
        self.recorded.add(name)

    def note_seen(self, function: Any) -> str:
        """Note an operation in traced code; return the key of its row, or ""."""
        name, known_function = name_operation(function), self.table.get(function)
        if known_function is None and name in self.rules:
            known_function = KnownFunction(name, writes=describe(name, function).writes)
        if known_function is None and self.seen is not None:
            self.seen.add(name)
        return "" if known_function is None else self.row_names[known_function]

    def count(self) -> int:
        return ask_mode(self.key, "count_hits") if is_compiling() else self.count_hits()

    def count_hits(self) -> int:
        return sum(self.hits.values())

    def say_missing(self) -> str:
        """Return an error message after a call of the whole; "" if every rule acted."""
        was_noting, self.is_noting = self.is_noting, False
        missing = next((name for name, count in self.hits.items() if not count), None)
        if missing is not None:
            called_names = (self.seen or set()) - {"", "get", "set"}
            return not_called_message(self.subject, missing, called_names, self.advise(missing))
        if self.seen is None or not torch.is_grad_enabled():
            return ""
        missing = next((name for name in self.hits if name not in self.recorded), None)
        if missing is None:
            # Every rule has acted: from now on calls of other operations are not noted.
            if was_noting or not self.notes_gaps:
                self.seen = None
            if was_noting:
                self.warn()
            return ""
        return (
            f"{self.subject} calls operation {missing!r} only where torch takes no gradient, so "
            "its rule acts nowhere: inside an autograd.Function, whose backward is its own, or "
            "under torch.no_grad. Select the layer that does so"
        )


def parameter_of(x: Tensor) -> nn.Parameter | None:
    """Return a parameter if a tensor is one, or is computed from parameters alone."""
    for tensor in (x, x._base):
        if isinstance(tensor, nn.Parameter):
            return tensor
    nodes, parameter = [x.grad_fn], None
    for _ in range(MOST_NODES):
        if not nodes:
            return parameter
        node = nodes.pop()
        variable = getattr(node, "variable", parameter)
        if variable is not None and not isinstance(variable, nn.Parameter):
            return None
        parameter = variable
        nodes += [each for each, _ in getattr(node, "next_functions", ()) if each is not None]
    return None


def check_met(mode: OperationMode) -> None:
    """Raise, after a call of the whole, if a rule of the mode acted nowhere."""
    message = ask_mode(mode.key, "say_missing") if is_compiling() else mode.say_missing()
    if message:
        refuse(message)


@dynamo.assume_constant_result
def ask_mode(key: str, method: str, *args: Any) -> Any:
    """Return the answer of a mode's method, called while Dynamo traces."""
    return getattr(KEYED[key], method)(*args)


def is_entered(mode: OperationMode) -> bool:
    for i in range(stack_length()):  # noqa: SIM110 (a third of the time of `any`)
        if stack_at(i) is mode:
            return True
    return False


def find_inner(mode: OperationMode) -> OperationMode | None:
    """Return the innermost entered mode of a model that lies within the model of this mode."""
    for i in range(stack_length() - 1, -1, -1):
        candidate = stack_at(i)
        if isinstance(candidate, OperationMode):
            for each in candidate.around:
                if each is mode:
                    return candidate
    return None


# --- xg.override for functions of torch -----------------------------------------------------------
def override_calls(function: Call, rules: Any) -> Call:
    def make(rows: list[tuple[Meant, Any]]) -> OperationMode:
        call_rules = {meant.name: rule_of_operation(meant.name, rule) for meant, (rule, _) in rows}
        return OperationMode(call_rules, f"function {name_of(function)!r}", rules)

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
        if not is_compiling() and is_around_region():
            note_acting((id(mode), 0), nullcontext)
        if not is_compiling():
            mode.start((args, kwargs))
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
    return rule, rule if is_layer_rule(rule) else replacement_for(rule)


# --- the names of torch's operations: of functions, methods, operators and overloads --------------
# `torch.add`, `Tensor.__iadd__`, `operator.add` and `torch.ops.aten.add.Tensor` are "add". Also
# which of torch's Python functions call operations internally, so that a mode can see those calls.
# The name of an operation by its other names.
ALIASES = {
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
# Where torch's functions and methods are.
HOMES = (torch, torch.Tensor, F, torch.special, torch.linalg, torch.fft)
CALLABLES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


def find_operation(selector: Any) -> str | None:
    if isinstance(selector, str):
        return selector if selector in operation_names() else None
    if isinstance(selector, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return name_operation(selector)
    try:
        name = known_functions().get(selector)
    except TypeError:  # no hash
        return None
    return name if name in operation_names() else None


def is_operation(selector: Any) -> bool:
    """Return whether a selector of `override` is a function of torch."""
    # Python's own operators and strings are also selectors of other frameworks.
    is_ours = getattr(selector, "__module__", None) != "_operator" and not isinstance(selector, str)
    return is_ours and find_operation(selector) is not None


def name_operation(function: Any) -> str:
    """Return the operation that a function computes; "" for one without a name."""
    name = getattr(function, "__name__", "") or ""
    if isinstance(function, torch._ops.OpOverload):
        name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        return name_of_special_method(name[2:-2])
    for home in ("special_", "linalg_", "fft_"):
        name = name.removeprefix(home)
    return plain_name(name.strip("_") or name)


def name_of_special_method(word: str) -> str:
    """Return the operation of a method `__word__`: "add" for "iadd" and "radd"."""
    for prefix in ("", "i", "r"):
        operation = plain_name(word.removeprefix(prefix))
        # `__invert__` is no in-place `nvert`.
        if word.startswith(prefix) and operation in torch_names():
            return operation
    return plain_name(word)


def plain_name(name: str) -> str:
    return ALIASES.get(name, name)


@functools.cache
def torch_names() -> frozenset[str]:
    """Return the public names in torch's namespaces, aliases among them."""
    names = {
        name.rstrip("_")
        for home in HOMES
        for name in dir(home)
        if not name.startswith("_") and isinstance(getattr(home, name, None), CALLABLES)
    }
    return frozenset({*names, "getitem"})


@functools.cache
def operation_names() -> frozenset[str]:
    return frozenset(map(plain_name, torch_names()))


@functools.cache
def known_functions() -> dict[Any, str]:
    """Return the operations by the functions, methods and operators that compute them."""
    functions = {
        value: name_operation(value)
        for home in HOMES
        for name in dir(home)
        if is_public(name) and isinstance(value := getattr(home, name, None), CALLABLES)
    }
    operators = {
        value: name_of_special_method(name.strip("_"))
        for name, value in vars(operator).items()
        if isinstance(value, types.BuiltinFunctionType)
    }
    own_operators = {value: name for value, name in operators.items() if name in operation_names()}
    return functions | {abs: "abs", pow: "pow"} | own_operators


def is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


# --- functions of torch that call others ----------------------------------------------------------
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
    callees = {
        value: {plain_name(name.rstrip("_")) for name in value.__code__.co_names}
        for home in (F, torch.functional)
        for value in vars(home).values()
        if isinstance(value, types.FunctionType)
    }
    helpers = {value.__name__: names for value, names in callees.items()}
    has_grown = True
    # Then also those in what it calls, until nothing is added.
    while has_grown:
        has_grown = False
        for names in callees.values():
            new_names = set().union(*(helpers[n] for n in names & helpers.keys())) - names
            names |= new_names
            has_grown = has_grown or bool(new_names)
    return {
        value: names
        for value, names in callees.items()
        if value.__module__ in (F.__name__, torch.functional.__name__)
        and not value.__name__.startswith("_")
    }


ASKING_FOR_MODES = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def has_none(*args: Any) -> bool:
    """Return False, as `has_torch_function` in a function that is seen through."""
    return False


@functools.cache
def see_through(function: types.FunctionType) -> Call:
    """Return one of torch's Python functions so that modes see the calls within it."""
    # Without `__name__`, or Dynamo would read the globals from the module of that name.
    names = {**function.__globals__, **dict.fromkeys(ASKING_FOR_MODES, has_none)}
    del names["__name__"]
    transparent = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    transparent.__kwdefaults__ = function.__kwdefaults__
    return transparent
