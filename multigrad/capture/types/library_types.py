"""Types come from the library: each call that is recorded is also made on stand-ins of one element,
and the dtype that the library gives them is that of the node.

A capture holds for every float dtype, so that where `T` stands among the operands the library is
asked for each of them: what follows T is T, what is the same for all is fixed, and where it is
neither, the dtype becomes a fact.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...backend.discovery import backend_of
from ...errors import BackendNotFound
from ...graph import ops
from ...graph.ir.graph import Node
from ...graph.ir.types import (
    BOOL,
    DTYPES,
    FLOATS,
    FLOATS_OF_16_BITS,
    INPUT_SHAPE,
    WHOLE,
    T,
    dtype_name,
)
from ...graph.ops.results import PER_ELEMENT
from ...graph.passes.facts import LIBRARY, needed_rank
from ...trace.assertions import AUTOCAST
from ...trace.axes import known_shape
from ...trace.lookups import note
from ...trace.source import OF_CODE, OF_TENSORS
from ...trace.trace import NeedsConcrete, Trace, Value, cast_node
from ..dialect import find_dialect
from ..dtypes import (
    cast,
    is_bool,
    is_exact_cast,
    is_tensor,
    is_tensor_of_other_dtype,
    is_wider,
    own_dtype,
    source_dtype,
    steps_between,
)
from ..meanings.places import Extremes
from ..symbols import Number, SymbolicDevice, SymbolicDType
from .oracle import (
    ARRAYS,
    COMPUTES_IN,
    DEPENDS,
    FOLLOWS,
    NO_PAIRS,
    NUMBERS,
    ORDERS,
    Answer,
    Mark,
    ModeOf,
    Reach,
    TypeOracle,
    Unaskable,
    answer_to,
    are_plain,
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
    with_leaves,
    without_value,
)
from .traced_calls import is_composed, is_one_step, meet_call

MOST_ELEMENTS = 65_536  # of tensors in their own shapes


class LibraryTypes:
    """What the libraries say of the calls of one capture.

    Attributes:
        given: the dtype of each leaf of the result of the call that is being recorded, () where the
            library does not say.
        unconfirmed: calls of which no library could say the type.
        reach: where the capture holds, which is for the wide floats.
        weak: tensors whose dtype gives way, in libraries that have such.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.given: tuple[str, ...] = ()
        self.unconfirmed: dict[str, None] = {}
        self.weak: set[Node] = set()
        self.reach = Reach(trace.facts.named_dtypes)
        self._is_inside = False
        # The one float dtype of an operator's operands, and these.
        self._kept_in: tuple[str, tuple[Any, ...]] | None = None
        self._modes = modes()
        self._oracles: dict[str, TypeOracle] = {}  # by library

    @property
    def expected(self) -> str:
        """The dtype of the result of the call, "" where there are several, or none."""
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
        """Return the result of `record(*args, **kwargs)` in the type that the library gives it.

        Raises:
            TypeError: the graph's ops do not compute in that type.
            NeedsConcrete: the type depends on the dtype or the rank of an input.
        """
        if self._is_inside:
            return record(*args, **kwargs)
        meet_call(self.trace, (args, kwargs))
        oracle = self._oracle()
        if oracle is None:
            return record(*args, **kwargs)
        if oracle.casts(function):
            self.trace.omit(AUTOCAST)
        is_narrow = (fixed := self.trace.facts.get("dtype")) in FLOATS_OF_16_BITS
        follows = function in FOLLOWS
        keeps = not is_narrow and (follows or function in ORDERS)
        if keeps and (dtype := self._kept(oracle, args)):
            given, before = dtype if follows else BOOL, self.given
            self.given, self._is_inside, self._kept_in = (given,), True, (dtype, args)
            try:
                result = record(*args)
            finally:
                self.given, self._is_inside, self._kept_in = before, False, None
            if own_dtype(result) == given:
                if fixed is None:
                    self._note_composed(function, result, args, kwargs)
                return result
        is_plain = are_plain(args, kwargs)
        if not is_plain and calls_back(args, kwargs):
            return record(*args, **kwargs)
        if function is operator.floordiv and self.trace.reading.owner in OF_CODE:
            record = self._by_floor(record)
        name = getattr(function, "__name__", "") or ""
        if is_not_asked(name):
            return self._record_unasked(record, args, kwargs)
        answer = self._answer(function, args, kwargs)
        if not is_plain and (wide := self._computes_in(name, args, kwargs)):
            args, kwargs = with_leaves((args, dict(kwargs)), lambda x: self._in_dtype(x, wide))
            kwargs = {k: v for k, v in kwargs.items() if k not in COMPUTES_IN}
        before, self._is_inside = self.given, True
        self.given = tuple([dtype for dtype, _ in answer or ()])
        try:
            result = record(*args, **kwargs)
            if answer is not None and len(answer) == 1 and oracle.casts_first(function):
                leaves = args if is_plain else leaves_of((args, kwargs))
                result, args, kwargs = self._promoted_first(
                    result, answer[0][0], args, kwargs, record, leaves=leaves
                )
            if fixed is None:
                self._note_composed(function, result, args, kwargs)
            elif is_narrow and self._computes_wide(function, result, (args, kwargs)):
                result = self._record_in_float32(record, args, kwargs)
            if answer is not None and type(result) is Extremes:
                if len(answer) > 1:
                    result = self._with_places(result, answer[1][0])
                answer = answer[:1]
            leaves = leaves_of(result)
            if answer is None or len(answer) != len(leaves):
                self._note(shown or name, result, (args, kwargs))
                return result
            if not self._agree(leaves, answer):
                result = self._anew(result, answer, args, kwargs, record)
                leaves = leaves_of(result)
        finally:
            self.given, self._is_inside = before, False
        for x, (_, is_weak) in zip(leaves, answer, strict=True):
            if is_weak and isinstance(x, Value):
                self.weak.add(x.node)
        return result

    def _by_floor(self, record: Callable[..., Any]) -> Callable[..., Any]:
        """Return how a library divides integers, also by zero."""
        dialect = find_dialect(self.trace.reading.dialect)
        return record if dialect is None else dialect.names.methods.get("__floordiv__", record)

    def _record_unasked(
        self, record: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        before, self.given, self._is_inside = self.given, (), True
        try:
            return record(*args, **kwargs)
        finally:
            self.given, self._is_inside = before, False

    def _record_in_float32(
        self, record: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        listed = tuple(map(self._as_stacked, args))
        args, kwargs = with_leaves((listed, kwargs), lambda x: self._in_float32(x))
        return with_leaves(record(*args, **kwargs), self._narrowed)

    def _computes_in(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the dtype that a call names to compute in, "" for none."""
        mode = self.normal(computed_in(name, args, kwargs))
        return mode if mode in (T, *DTYPES) else ""

    def _in_dtype(self, x: Any, dtype: str) -> Any:
        is_tensor = isinstance(x, Value) and x.node.type.kind == "tensor"
        return self.cast(x, dtype) if is_tensor else x

    def cast(self, value: Value, dtype: str) -> Value:
        """Return a tensor in a dtype; a number as it is."""
        known = value.node.type.dtype
        if known == dtype or value.node.type.kind == "scalar":
            return value
        if known not in (T, *FLOATS) and dtype != BOOL:
            return value.trace.value(cast_node(value.node, dtype))
        return cast(value, dtype)

    def _agree(self, leaves: Sequence[Any], answer: Answer) -> bool:
        return not [
            x
            for x, (dtype, _) in zip(leaves, answer, strict=True)
            if is_tensor_of_other_dtype(x, dtype)
        ]

    def _anew(
        self, result: Any, answer: Answer, args: Any, kwargs: Any, record: Callable[..., Any]
    ) -> Any:
        """Return a result in the library's type: cast where exact, else made of cast operands."""
        pairs = zip(leaves_of(result), answer, strict=True)
        wrong = [(x, dtype) for x, (dtype, _) in pairs if is_tensor_of_other_dtype(x, dtype)]
        if all(is_exact_cast(source_dtype(x), dtype) for x, dtype in wrong):
            rest = iter(answer)
            return with_leaves(result, lambda x: self._recast(x, next(rest)[0]))
        x, dtype = wrong[0]
        if dtype in (T, *FLOATS, *WHOLE) and all(each == dtype for _, each in wrong):
            given = with_leaves(
                (args, kwargs), lambda x: x if is_bool(x) else self._in_dtype(x, dtype)
            )
            again = record(*given[0], **given[1])
            if self._agree(leaves_of(again), answer):
                return again
        if "dtype" not in self.trace.facts and T in (dtype, x.node.type.dtype):
            raise NeedsConcrete("dtype")
        wanted, found = self._shown(dtype), self._shown(x.node.type.dtype)
        advice = f"its operands to {wanted}"
        if wanted == BOOL and any(is_bool(each) for each in leaves_of((args, kwargs))):
            advice = f"the mask to {found}"  # TensorFlow multiplies a float by a mask as two masks
        raise TypeError(f"it gives {wanted}, and {found} as a graph: cast {advice} first")

    def _recast(self, x: Any, dtype: str) -> Any:
        """Return a tensor in a dtype; one that was cast from integers, from these."""
        if not is_tensor_of_other_dtype(x, dtype):
            return x
        node = x.node.operands[0] if x.node.op is ops.CAST else x.node
        return self.cast(self.trace.value(node), dtype)

    def _with_places(self, result: Extremes, dtype: str) -> Extremes:
        """Return values whose places, recorded when they are asked for, have a dtype."""
        return Extremes(result.values, lambda: self.cast(result.indices, dtype))

    def _promoted_first(
        self,
        result: Any,
        dtype: str,
        args: Any,
        kwargs: Any,
        record: Callable[..., Any],
        *,
        leaves: Iterable[Any],
    ) -> tuple[Any, Any, Any]:
        """Return a result whose operands took its dtype before the first of several ops, as a
        library casts them, and these: floats, and all others where each element stands for itself.
        """
        operands = {x.node for x in leaves if isinstance(x, Value) and is_tensor(x)}
        others = {node.type.dtype for node in operands} - {dtype}
        if not others or dtype not in (T, *FLOATS, *WHOLE) or not isinstance(result, Value):
            return result, args, kwargs
        between = steps_between(result.node, operands)
        cast_all = all(node.op.result in PER_ELEMENT or node.op.view for node in between)
        kept: tuple[str, ...] = () if cast_all else (BOOL, *WHOLE)
        if cast_all and (dtype in WHOLE or any(node.op is ops.WHERE for node in between)):
            kept = (BOOL,)  # perhaps a mask
        others -= {*kept}
        # A count, or a place, is no dtype that operands have in common.
        widens = dtype not in WHOLE or (cast_all and all(is_wider(o, dtype) for o in others))
        if len(between) < 2 or not others or not widens:
            return result, args, kwargs
        first = with_leaves(
            (args, kwargs), lambda x: x if own_dtype(x) in kept else self._in_dtype(x, dtype)
        )
        try:
            return record(*first[0], **first[1]), *first
        except TypeError:  # one of them is a mask, or says where something is
            return result, args, kwargs

    def _computes_wide(self, function: Any, result: Any, given: Any) -> bool:
        """Return whether a library rounds once where our ops would round at each step."""
        oracle = self._oracle()
        is_other = is_composed(result, given) or self._is_beside_wider(given)
        return is_other and oracle is not None and oracle.is_wide(function)

    def _note_composed(
        self, function: Any, result: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> None:
        """Note a function that may be computed otherwise in 16 bits."""
        if function is operator.floordiv:
            self.reach.named.update(FLOATS_OF_16_BITS)
        if is_one_step(result, (*args, *kwargs.values())):
            return
        oracle = self._oracle()
        is_other = is_composed(result, (args, kwargs)) or self._is_beside_wider((args, kwargs))
        if is_other and oracle is not None:
            self.reach.composed[function] = oracle.is_wide

    def _is_beside_wider(self, given: Any) -> bool:
        """Return whether a tensor without axes that gives way holds more than 16 bits do."""
        oracle = self._oracle()
        if oracle is None or not oracle.ranks_count:
            return False
        # A symbol that is no tensor says nothing before it is known who asks.
        numbers = SymbolicDType | SymbolicDevice | np.generic
        leaves = (x for x in leaves_of(given) if not isinstance(x, numbers))
        marks = [self.mark(x) for x in leaves if getattr(x, "dtype", None) is not None]
        return any(mark.rank == 0 and mark.dtype in FLOATS[2:] for mark in marks)

    def _as_stacked(self, x: Any) -> Any:
        """Return a list that the library stacks, cast to T (16 bits) if any tensor in it has T."""
        if not isinstance(x, list) or all(own_dtype(each) != T for each in x):
            return x
        return [self._in_dtype(each, T) if isinstance(each, Value) else each for each in x]

    def _in_float32(self, x: Any) -> Any:
        return self.cast(x, "float32") if own_dtype(x) == T else x

    def _narrowed(self, x: Any) -> Any:
        return self.cast(x, T) if own_dtype(x) == "float32" else x

    def _note(self, shown: str, result: Any, given: Any) -> None:
        """Note a call of which the library could not say the type, unless it keeps an operand's."""
        kept = {own_dtype(x) for x in leaves_of(given)}
        others = [x for x in leaves_of(result) if isinstance(x, Value) and own_dtype(x) not in kept]
        if others and self.trace.reading.owner in OF_CODE:
            self.unconfirmed[shown] = None

    # --- what operands become ---------------------------------------------------------------------
    def is_active(self) -> bool:
        """Return whether the library is known whose code runs now."""
        return self._oracle() is not None

    def mark(self, operand: Any) -> Mark:
        """Return the mark by which the library knows an operand; numbers carry no value."""
        if not isinstance(operand, Value) and isinstance(operand, list | tuple):
            operand = np.asarray(operand)
        return without_value(self._mark(operand))

    def common(self, marks: Sequence[Mark]) -> str:
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

    def follows(self, operands: Sequence[Any]) -> str:
        """Return the dtype of floats that have one, and of plain numbers at most, which every
        library keeps; "" of any others.
        """
        return self._kept(self._oracle(), operands)

    def _kept(self, oracle: TypeOracle | None, operands: Sequence[Any]) -> str:
        dtype = one_float(operands, self.weak)
        if not dtype or oracle is None or not oracle.apart:  # as in most libraries
            return dtype
        return "" if self._is_apart((dtype,)) else dtype

    def floats_of(self, operands: Sequence[Any]) -> str | None:
        """Return the same as nodes have it; None: the library is not known."""
        oracle = self._oracle()
        if oracle is None:
            return None
        dtype, known = self._kept_in or ("", ())
        is_known = 0 < len(known) == len(operands) and all(map(operator.is_, known, operands))
        if not is_known:  # mostly they are those of its only op
            dtype = self._kept(oracle, operands)
        return dtype if dtype in ("", T) else self.normal(dtype)

    def float_of(self, marks: Sequence[Mark]) -> str:
        """Return the float dtype in which the library computes on integers and bools."""
        if self.expected in (T, *FLOATS):
            return self.expected
        first = next((mark for mark in marks if mark.is_tensor), None)
        return "" if first is None else self._promoted(operator.truediv, [first])

    def made(
        self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> tuple[str, bool] | None:
        """Return the dtype of what a creation function makes, and whether it is weak; None: nobody
        tells.
        """
        answer = None if self._oracle() is None else self._answer(function, args, kwargs)
        return answer[0] if answer and answer[0][0] else None

    def normal(self, dtype: str) -> str:
        """Return a dtype as nodes have it: T, where it is the input's."""
        return T if dtype != T and dtype in FLOATS and self.trace.facts.has_dtype(dtype) else dtype

    def _shown(self, dtype: str) -> str:
        return str(self.trace.facts.get("dtype", "the input's dtype")) if dtype == T else dtype

    # --- asking -----------------------------------------------------------------------------------
    def library(self) -> str:
        """Return the library whose call is recorded: that of the code, or of the call's tensors; ""
        where nothing depends on it.
        """
        if self.trace.reading.owner in OF_CODE:
            return self.trace.reading.dialect
        name = self.trace.facts.get(LIBRARY, "") if self.trace.reading.owner in OF_TENSORS else ""
        dialect = find_dialect(name) if name else None
        return name if dialect is not None and dialect.types and dialect.types.promotes else ""

    def _oracle(self) -> TypeOracle | None:
        # Asked several times at each call that is recorded.
        name = self.trace.reading.dialect if self.trace.reading.owner in OF_CODE else self.library()
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
        if function in FOLLOWS and (dtype := self.follows(args)):
            return [(dtype, False)]
        if function in ORDERS and not any(mark.kind == "array" for mark in marks):
            return [(BOOL, False)]
        oracle = self._oracle()
        if oracle is not None and oracle.ranks_count and len(marks) > 1:
            self._need_ranks(args, kwargs, marks)
        answer = self._ask(function, (items, pairs))
        if oracle is not None and answer and not is_stated(oracle, function, marks, answer):
            self._note_mode()
        if answer is not None:
            return answer
        if any(mark.is_tensor for mark in marks) and self._are_small(args, kwargs):
            whole = tuple(mark_tree(each, self._mark_whole, []) for each in (args, dict(kwargs)))
            answer = self._ask(function, whole)
        return answer

    def _note_mode(self) -> None:
        """Note what the library is set to, where that may change an answer."""
        name = self.library()
        if (mode := self._mode(name)) is not None:
            note({ModeOf(name): mode})

    def _promoted(self, function: Callable[..., Any], marks: Sequence[Mark]) -> str:
        """Return the dtype of an operator on these, one after the other; "" where it has none."""
        first, *rest = marks
        for mark in rest or [first]:
            pair = (Mark("items", value=(tuple, first, mark)), Mark("pairs", value=()))
            answer = self._ask(function, pair)
            if not answer:
                return ""
            first = Mark("tensor", answer[0][0], 1, answer[0][1])
        return first.dtype

    def _is_apart(self, dtypes: Iterable[str]) -> bool:
        """Return whether a tensor is of a dtype that a plain number changes."""
        oracle, fixed = self._oracle(), self.trace.facts.get("dtype")
        if oracle is None or not oracle.apart:
            return False
        if fixed is None:
            self.reach.named.update(oracle.apart)
        return any((fixed if dtype == T else dtype) in oracle.apart for dtype in dtypes)

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
        fixed = self.trace.facts.get("dtype")
        name = self.library()
        asked = (name, self._mode(name), function, key)
        answer = answer_to(asked, fixed)
        if answer == DEPENDS:
            raise NeedsConcrete("dtype")
        if fixed is None:
            self.reach.asked.append((asked, answer))
        return answer and in_terms_of(fixed, answer)

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

    def _mark_whole(self, x: Any) -> Mark:
        """Return the same, in its own shape."""
        mark = self._mark(x)
        return mark._replace(value=tuple(known_shape(x) or ())) if mark.kind == "tensor" else mark

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
