"""The dtypes of recorded calls come from the library: each call is also made on stand-ins of one
element, and the dtype that the library gives them is that of the node.

    x * 2          float32 of a float32, float64 of a float64: the dtype of x, which is T
    n + 1.5        of integers n, by torch: its default dtype, whatever T is

A capture holds for every float dtype, so that where `T` stands among the operands the library is
asked for each of them: what follows T is T, what is the same for all is fixed, and where it is
neither, the dtype becomes a fact (`NeedsConcrete`).

`LibraryTypes` belongs to one capture (`Trace.types`). For each call:

1. `confirmed` asks the library (`_answer`, by the marks of the arguments; `oracle.py` caches).
2. It records the call's ops. Meanwhile `_in_progress` has the answer: the coercion of operands
   (`trace/coercion.py`) asks for it by `expected`, `dtype_of` and `floats_of`.
3. If the ops give another dtype, `corrections.py` casts the result or records it anew.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.discovery import backend_of
from ....core.ir.graph import Node
from ....core.ir.op import (
    BOOL,
    DTYPES,
    FLOATS,
    FLOATS_OF_16_BITS,
    INPUT_SHAPE,
    INT32,
    WHOLE,
    Op,
    T,
    dtype_name,
)
from ....core.passes.facts import LIBRARY, ON_NUMBERS
from ....core.trace.coercion import cast_node
from ....core.trace.lookups import note
from ....core.trace.source import AUTOCAST, TENSORS
from ....core.trace.trace import NeedsConcrete, Value, known_shape
from ....errors import BackendNotFound
from ...passes.shapes import needed_rank
from ...trace.code_trace import (
    OF_CODE,
    OF_TENSORS,
    UNDECIDED,
    CodeTrace,
    meet_numpy,
    rely_on_library,
)
from ..dialect import find_dialect
from ..meanings.places import Extremes
from ..symbols import Number, SymbolicDevice, SymbolicDType, is_number, is_tensor, own_dtype
from . import corrections, memory
from .corrections import LibraryCall, is_composed, is_one_step
from .oracle import (
    ARRAYS,
    FOLLOWS,
    NO_PAIRS,
    NUMBERS,
    ORDERS,
    Answer,
    LeafType,
    Mark,
    ModeOf,
    NoAnswer,
    Reach,
    TypeOracle,
    Unaskable,
    answer_to,
    calls_back,
    computed_in,
    in_terms_of,
    is_not_asked,
    is_stated,
    leaves_of,
    mark_plain,
    mark_tree,
    modes,
    one_float,
    ranks_decide,
    without_value,
)

MOST_ELEMENTS = 65_536  # of tensors in their own shapes


class LibraryTypes:
    """What the libraries say of the calls of one capture.

    Attributes:
        unconfirmed: calls of which no library could say the type.
        reach: where the capture holds, which is for the wide floats.
        weak: tensors whose dtype gives way, in libraries that have such.
    """

    def __init__(self, trace: CodeTrace) -> None:
        self.trace = trace
        self.unconfirmed: dict[str, None] = {}
        self.weak: set[Node] = set()
        self.reach = Reach(trace.facts.named_dtypes)
        # The dtypes of the result of the call whose ops are being recorded, which are not asked
        # about by themselves; () where the library does not say, None while there is no call.
        self._in_progress: tuple[str, ...] | None = None
        self._modes = modes()  # by library, as they were when the capture began
        self._oracles: dict[str, TypeOracle] = {}  # by library

    @property
    def given(self) -> tuple[str, ...]:
        """The dtypes of the leaves of the result of the call in progress, () if not known."""
        return self._in_progress or ()

    @property
    def expected(self) -> str:
        """The dtype of the result of the call in progress, "" where there are several, or none."""
        return self.given[0] if len(self.given) == 1 else ""

    # --- a call -----------------------------------------------------------------------------------
    def confirmed(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        record: Callable[..., Any],
        shown: str = "",
    ) -> Any:
        """Return the result of `record(*args, **kwargs)` in the type that the library says its
        `function` gives.

        Raises:
            TypeError: the graph's ops do not compute in that type.
            NeedsConcrete: the type depends on the dtype or the rank of an input.
        """
        if self._in_progress is not None:
            return record(*args, **kwargs)
        meet_call(self.trace, (args, kwargs))
        oracle = self._oracle()
        if oracle is None:
            return record(*args, **kwargs)
        if oracle.casts(function):
            self.trace.omit(AUTOCAST)
        # Most calls are operators on floats of one dtype, for which nobody needs to be asked.
        result = self._operator_on_floats(oracle, function, args, kwargs, record)
        if result is not None:
            return result
        if calls_back(args, kwargs):  # what it calls is asked about, each alone
            return record(*args, **kwargs)
        if function is operator.floordiv and self.trace.reading.owner in OF_CODE:
            # Libraries differ where integers are divided by zero.
            dialect = find_dialect(self.trace.reading.typed_by)
            methods = {} if dialect is None else dialect.names.methods
            record = methods.get("__floordiv__", record)
        call = LibraryCall(function, args, kwargs, record)
        is_asked = not is_not_asked(call.name)
        answer = self._answer(function, args, kwargs) if is_asked else None
        dtype = self.normal(computed_in(call.name, args, kwargs)) if is_asked else ""
        if dtype in (T, *DTYPES):
            call = call.computed_in(dtype)
        dtypes = tuple([leaf.dtype for leaf in answer or ()])
        if not is_asked:
            return self._within(dtypes, call.recorded)
        return self._within(
            dtypes, lambda: self._as_answered(oracle, call, answer, shown or call.name)
        )

    def _within(self, dtypes: tuple[str, ...], record: Callable[[], Any]) -> Any:
        self._in_progress = dtypes
        try:
            return record()
        finally:
            self._in_progress = None

    def _operator_on_floats(
        self, oracle: TypeOracle, function: Any, args: Any, kwargs: Any, record: Any
    ) -> Any:
        """Return an arithmetic operator or a comparison of floats of one dtype; None for others."""
        follows, input_dtype = function in FOLLOWS, self.trace.facts.get("dtype")
        if input_dtype in FLOATS_OF_16_BITS or not (follows or function in ORDERS):
            return None
        float_dtype = self._kept_by_numbers(oracle, args)
        if not float_dtype:
            return None
        dtype = float_dtype if follows else BOOL
        result = self._within((dtype,), lambda: record(*args))
        if own_dtype(result) != dtype:
            return None
        if input_dtype is None:
            self._note_composed(oracle, function, result, args, kwargs)
        return result

    def _as_answered(
        self, oracle: TypeOracle, call: LibraryCall, answer: Answer | None, shown: str
    ) -> Any:
        """Record a call and return its result in the library's dtypes."""
        result = call.recorded()
        memory.own_temporaries(leaves_of(result), call.operands)
        if answer is not None and len(answer) == 1 and oracle.casts_first(call.function):
            result, call = corrections.promoted_first(call, result, answer[0].dtype)
        input_dtype = self.trace.facts.get("dtype")
        if input_dtype is None:
            self._note_composed(oracle, call.function, result, call.args, call.kwargs)
        elif input_dtype in FLOATS_OF_16_BITS:
            # Where the library rounds once and our ops would round at each step.
            is_other = self._rounds_otherwise(result, (call.args, call.kwargs))
            if is_other and oracle.is_wide(call.function):
                result = corrections.computed_in_float32(call)
        if answer is not None and type(result) is Extremes:
            if len(answer) > 1:
                result = corrections.with_places_in(result, answer[1].dtype)
            answer = answer[:1]
        leaves = leaves_of(result)
        if answer is None or len(answer) != len(leaves):
            # The library could not say its type: noted, unless it keeps an operand's.
            dtypes = {own_dtype(x) for x in call.operands}
            is_other = any(own_dtype(x) not in dtypes for x in leaves if isinstance(x, Value))
            if is_other and self.trace.reading.owner in OF_CODE:
                self.unconfirmed[shown] = None
            return result
        if not corrections.agree(leaves, answer):
            result = corrections.corrected(self.trace, call, result, answer)
            leaves = leaves_of(result)
        for x, leaf_type in zip(leaves, answer, strict=True):
            if leaf_type.is_weak and isinstance(x, Value):
                self.weak.add(x.node)
        return result

    # --- what is noted of a call ------------------------------------------------------------------
    def _note_composed(
        self, oracle: TypeOracle, function: Any, result: Any, args: Any, kwargs: Any
    ) -> None:
        """Note a function that may be computed otherwise in 16 bits."""
        if function is operator.floordiv:
            self.reach.named.update(FLOATS_OF_16_BITS)
        if is_one_step(result, (*args, *kwargs.values())):
            return
        if self._rounds_otherwise(result, (args, kwargs)):
            self.reach.composed[function] = oracle.is_wide

    def _rounds_otherwise(self, result: Any, arguments: Any) -> bool:
        return is_composed(result, arguments) or self._is_beside_wider(arguments)

    def _is_beside_wider(self, arguments: Any) -> bool:
        """Return whether a tensor without axes that gives way holds more than 16 bits do."""
        oracle = self._oracle()
        if oracle is None or not oracle.ranks_count:
            return False
        # First: `isinstance` of a symbol with another class inspects frames. A symbol that is no
        # tensor says nothing before it is known who asks.
        numbers = SymbolicDType | SymbolicDevice | np.generic
        marks = [
            self.mark(x)
            for x in leaves_of(arguments)
            if isinstance(x, Value)
            or not (isinstance(x, numbers) or getattr(x, "dtype", None) is None)
        ]
        return any(mark.rank == 0 and mark.dtype in FLOATS[2:] for mark in marks)

    # --- what operands become ---------------------------------------------------------------------
    def is_active(self) -> bool:
        """Return whether the library is known whose code runs now."""
        return self._oracle() is not None

    def mark(self, operand: Any) -> Mark:
        """Return the mark by which the library knows an operand; numbers carry no value."""
        if not isinstance(operand, Value) and isinstance(operand, list | tuple):
            operand = np.asarray(operand)
        return without_value(self._mark(operand))

    def dtype_of(self, op: Op, operands: Sequence[Any], floats: str) -> str | None:
        """Return the dtype in which the library computes an op; None if it is not known.

        `floats`: the dtype of all operands, if they are floats of one; else "".
        """
        if floats:
            return floats
        marks = list(map(self.mark, operands))[op.coerce == "where" :]
        if not any(mark.is_tensor for mark in marks):
            # The dtype of a comparison of numbers tells nothing about the operands.
            is_known = self.expected != BOOL or all(mark.dtype == BOOL for mark in marks)
            return self.expected or None if is_known else None
        common = self._common(marks)
        if not common or common in (T, *FLOATS) or op.coerce == "where":
            return common or None
        if op.coerce == "int" or op.integer is True:
            whole = self.expected if self.expected in WHOLE else INT32
            return whole if common == BOOL else common
        # Some ops are computed wide, whatever dtype the result has; others in floats.
        return (str(op.integer) if op.integer else self._float_of(marks)) or None

    def on_integers(
        self, op: Op, nodes: Sequence[Node], operands: Sequence[Any], floats: str
    ) -> Callable[[], Any] | None:
        """Return a function that records an op in integers, where the library computes in these;
        None where it does not. `floats` is as for `dtype_of`.
        """
        function = corrections.ON_INTEGERS.get(op)
        if function is None or floats or self.expected in (T, *FLOATS):
            return None
        dtype = self._common(list(map(self.mark, operands)))
        dtype = self.expected if dtype == BOOL and self.expected in WHOLE else dtype
        if dtype not in WHOLE:
            return None
        return partial(function, *[self._in_integers(node, dtype) for node in nodes])

    def _in_integers(self, node: Node, dtype: str) -> Any:
        if node.op is ops.CONST:
            return +node.attr("value")  # True is 1
        needs_cast = node.type.kind == "tensor" and node.type.dtype != dtype
        return self.trace.value(cast_node(node, dtype) if needs_cast else node)

    def _common(self, marks: Sequence[Mark]) -> str:
        """Return the dtype in which the library computes on these, "" where it does not say."""
        tensors = [mark for mark in marks if mark.is_tensor]
        dtypes = {mark.dtype for mark in tensors}
        if len(dtypes) == 1 and not any(mark.is_weak for mark in tensors):
            (dtype,) = dtypes
            numbers = {mark.dtype for mark in marks if mark.kind == "number"}
            follows = dtype in (T, *FLOATS) or (dtype in WHOLE and "float" not in numbers)
            if follows and not self._is_apart(dtypes):
                return self.normal(dtype)
        return self._promoted(operator.add, marks)

    def _kept_by_numbers(self, oracle: TypeOracle | None, operands: Sequence[Any]) -> str:
        """Return the one dtype of floats, if plain numbers keep it; "" of other operands."""
        dtype = one_float(operands, self.weak)
        if not dtype or oracle is None or not oracle.apart:  # as in most libraries
            return dtype
        return "" if self._is_apart((dtype,)) else dtype

    def floats_of(self, operands: Sequence[Any]) -> str | None:
        """Return the one dtype of floats, as nodes have it; "" of other operands. None: the library
        is not known.
        """
        oracle = self._oracle()
        if oracle is None:
            return None
        dtype = self._kept_by_numbers(oracle, operands)
        return dtype if dtype in ("", T) else self.normal(dtype)

    def _float_of(self, marks: Sequence[Mark]) -> str:
        """Return the float dtype in which the library computes on integers and bools."""
        if self.expected in (T, *FLOATS):
            return self.expected
        first_mark = next((mark for mark in marks if mark.is_tensor), None)
        return "" if first_mark is None else self._promoted(operator.truediv, [first_mark])

    def type_created(
        self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> LeafType | None:
        """Return the type of what a creation function makes; None: nobody tells."""
        answer = None if self._oracle() is None else self._answer(function, args, kwargs)
        return answer[0] if answer and answer[0].dtype else None

    def normal(self, dtype: str) -> str:
        """Return a dtype as nodes have it: T, where it is the input's."""
        return T if dtype != T and dtype in FLOATS and self.trace.facts.has_dtype(dtype) else dtype

    # --- asking -----------------------------------------------------------------------------------
    def library(self) -> str:
        """Return the library whose call is recorded: that of the code, or of the call's tensors; ""
        where nothing depends on it.
        """
        if self.trace.reading.owner in OF_CODE:
            return self.trace.reading.typed_by
        name = self.trace.facts.get(LIBRARY, "") if self.trace.reading.owner in OF_TENSORS else ""
        dialect = find_dialect(name) if name else None
        return name if dialect is not None and dialect.types and dialect.types.promotes else ""

    def _oracle(self) -> TypeOracle | None:
        # Asked several times at each call that is recorded.
        reading = self.trace.reading
        name = reading.typed_by if reading.owner in OF_CODE else self.library()
        oracle = self._oracles.get(name)
        if oracle is None:
            dialect = find_dialect(name) if name else None
            oracle = None if dialect is None else dialect.types
            if oracle is not None:
                self._oracles[name] = oracle
        return oracle

    def _mode(self, name: str) -> Any:
        """Return the library's mode when the capture began, as captures set the mode anew."""
        if name not in self._modes:  # of a library that was imported since
            oracle = self._oracle()
            self._modes[name] = None if oracle is None else oracle.mode()
        return self._modes[name]

    def _answer(
        self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> Answer | None:
        """Return the dtype of each leaf of a call's result, None where the library cannot say."""
        marks: list[Mark] = []
        try:
            items = mark_tree(args, self._mark, marks)
            pairs = mark_tree(dict(kwargs), self._mark, marks) if kwargs else NO_PAIRS
        except Unaskable:
            return None
        if function in FOLLOWS and (dtype := self._kept_by_numbers(self._oracle(), args)):
            return [LeafType(dtype)]
        if function in ORDERS and not any(mark.kind == "array" for mark in marks):
            return [LeafType(BOOL)]
        oracle = self._oracle()
        if oracle is not None and oracle.ranks_count and len(marks) > 1:
            self._need_ranks(args, kwargs, marks)
        answer = self._ask(function, (items, pairs))
        if oracle is not None and answer and not is_stated(oracle, function, marks, answer):
            self._note_mode()
        if answer is not None:
            return answer
        if any(mark.is_tensor for mark in marks) and self._are_small(args, kwargs):

            def mark_whole(x: Any) -> Mark:  # in its own shape
                mark = self._mark(x)
                is_symbol = mark.kind == "tensor"
                return mark._replace(value=tuple(known_shape(x) or ())) if is_symbol else mark

            key = tuple(mark_tree(each, mark_whole, []) for each in (args, dict(kwargs)))
            answer = self._ask(function, key)
        return answer

    def _note_mode(self) -> None:
        """Note what the library is set to, where that may change an answer."""
        name = self.library()
        if (mode := self._mode(name)) is not None:
            note({ModeOf(name): mode})

    def _promoted(self, function: Callable[..., Any], marks: Sequence[Mark]) -> str:
        """Return the dtype of an operator on these, one after the other; "" where it has none."""
        result_mark, *others = marks
        for mark in others or [result_mark]:
            arguments = (Mark("items", value=(tuple, result_mark, mark)), Mark("pairs", value=()))
            answer = self._ask(function, arguments)
            if not answer:
                return ""
            result_mark = Mark("tensor", answer[0].dtype, 1, answer[0].is_weak)
        return result_mark.dtype

    def _is_apart(self, dtypes: Iterable[str]) -> bool:
        """Return whether a tensor is of a dtype that a plain number changes."""
        oracle, input_dtype = self._oracle(), self.trace.facts.get("dtype")
        if oracle is None or not oracle.apart:
            return False
        if input_dtype is None:
            self.reach.named.update(oracle.apart)
        return any((input_dtype if dtype == T else dtype) in oracle.apart for dtype in dtypes)

    def _need_ranks(self, args: Any, kwargs: Any, marks: Sequence[Mark]) -> None:
        """Ask for the ranks of tensors where these decide on the dtype."""
        arrays = [mark for mark in marks if mark.kind in ARRAYS]
        if len(arrays) < 2 or not ranks_decide(arrays, self.trace.facts.get("dtype", T)):
            return
        leaves = leaves_of((args, kwargs))
        nodes = [x.node for x in leaves if isinstance(x, Value) and x.node.type.kind == "tensor"]
        shapes = {node.type.shape for node in nodes}
        if len(nodes) == len(arrays) and shapes == {INPUT_SHAPE}:  # of one rank, whichever it is
            return
        for node in nodes:
            if self.trace.shapes.rank(node) is None:
                raise NeedsConcrete(*needed_rank(node))

    def _ask(self, function: Callable[..., Any], key: tuple[Mark, ...]) -> Answer | None:
        """Return the library's answer, T in it where it follows T."""
        input_dtype = self.trace.facts.get("dtype")
        name = self.library()
        question = (name, self._mode(name), function, key)
        answer = answer_to(question, input_dtype)
        if isinstance(answer, NoAnswer):
            raise NeedsConcrete("dtype")
        if input_dtype is None:
            self.reach.asked.append((question, answer))
        return None if answer is None else in_terms_of(input_dtype, answer)

    # --- marks ------------------------------------------------------------------------------------
    def _mark(self, x: Any) -> Mark:
        if isinstance(x, Value):
            type_ = x.node.type
            if type_.kind == "scalar" or x.is_number:
                kind = x.kind.__name__ if isinstance(x, Number) else "float"
                return Mark("number", type_.dtype if type_.dtype in NUMBERS else kind)
            return Mark("tensor", type_.dtype, self.trace.shapes.rank(x.node), x.node in self.weak)
        if isinstance(x, np.generic):
            return Mark("array", x.dtype.name, value=type(x))
        if isinstance(x, SymbolicDType | SymbolicDevice | type):  # these say who asks them
            return mark_plain(x)
        if hasattr(x, "dtype") and hasattr(x, "shape"):
            return self._mark_array(x)
        return mark_plain(x)

    def _are_small(self, args: Any, kwargs: Any) -> bool:
        """Return whether the shapes of all symbols are known, and not large."""
        symbols = (x for x in leaves_of((args, dict(kwargs))) if isinstance(x, Value))
        shapes = [known_shape(x) for x in symbols if is_tensor(x)]
        known = [shape for shape in shapes if shape is not None]
        return len(known) == len(shapes) and sum(map(math.prod, known)) <= MOST_ELEMENTS

    def _mark_array(self, x: Any) -> Mark:
        try:
            owner = backend_of(x).name
        except BackendNotFound:
            raise Unaskable from None
        oracle, dtype = self._oracle(), dtype_name(x.dtype)
        if oracle is not None and owner == self.library():
            mode = self._mode(owner)
            # Made here, perhaps by default.
            if x.dtype == mode and id(x) not in self.trace.memory.outside:
                self._note_mode()
            dtype = oracle.canonical(dtype, mode)
        is_weak = bool(getattr(x, "weak_type", False))
        return Mark("array", dtype, len(x.shape), is_weak, owner)


# --- whose dtypes a call shows the code to have, where it mentions no framework -------------------
def meet_call(trace: CodeTrace, arguments: Any) -> None:
    """Note what the arguments of a call tell about the library of the code."""
    if trace.reading.owner not in UNDECIDED:  # as in most code
        return
    # Code that has its tensors' dtypes was perhaps NumPy's on numbers: an array tells that it is.
    may_be_numpys = trace.reading.owner != TENSORS or ON_NUMBERS in trace.facts
    if may_be_numpys and any(isinstance(x, np.ndarray) for x in leaves_of(arguments)):
        meet_numpy(trace)
    elif _depends_on_library(trace, arguments):
        rely_on_library(trace)
        if trace.reading.owner not in OF_CODE and LIBRARY not in trace.facts:
            raise NeedsConcrete(LIBRARY)


def _depends_on_library(trace: CodeTrace, arguments: Any) -> bool:
    """Return whether libraries may give other dtypes for this call."""
    if trace.reading.owner == TENSORS and LIBRARY in trace.facts:
        return False  # the library is known by now
    if trace.facts.has_dtype("bfloat16"):
        return True
    leaves = leaves_of(arguments)
    symbols = [x for x in leaves if isinstance(x, Value)]
    constants = [x for x in leaves if not isinstance(x, Value)]
    is_open = any(own_dtype(x) != T for x in symbols if is_tensor(x) and not is_number(x))
    return is_open or any(hasattr(x, "dtype") for x in constants)
