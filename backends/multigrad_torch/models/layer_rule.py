"""Rules on layers: each wraps the forward of a module's class (an `Acting`, `swapped_classes.py`).

A region is a block under `torch.utils.checkpoint`, whose forward runs again in backward: a rule
acts there as it did in the first run, even if it was taken off since. Tests:
`tests/models/test_attach_torch.py`, `test_attach_regions_torch.py`.
"""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from multigrad.errors import ActsNowhereWarning, RuleValueError
from multigrad.models.gradient_replacement import named
from multigrad.models.selectors import Row, refuse_second, unfit_message

from ..core import dynamo
from .call_rule import (
    PlainRule,
    call_merged,
    find_mark,
    is_compiling,
    key_of,
    may_have_gradient,
    name_layer,
    note_reader,
    rules_inside,
    stack_length,
)
from .layer_kinds import ACTIVATION_OF, ACTIVATIONS, kind_of
from .override import OperationMode, ask_mode, parameter_of
from .regions import has_acted, is_around_region, note_acting
from .swapped_classes import Acting, Method, acting_on, put_on, take_off

Tensor: TypeAlias = torch.Tensor


# --- what acts in regions, too --------------------------------------------------------------------
def acts_in_regions(acting: Acting, module: nn.Module) -> bool:
    """Note what acts on a module in the regions around; return whether it did in their first run,
    for it acts in the second as then.
    """
    key = id(acting), id(module)
    if not has_acted(key):
        return False
    note_acting(key, functools.partial(acting_again, acting, module))
    return True


class LayerInterceptor(Acting):
    """A rule on layers, of which each layer has one at most.

    Attributes:
        rule_name: in messages.
        called: the layers that were called in eager code, by identity.
        was_traced: whether compiled code calls any of its layers.
        needs_no_warning: whether it has acted, or a warning has said that it does not.
        seen_without_gradient: the layers, by identity, whose first call had no gradient for the
            rule: the second call warns.
    """

    rule_name: str

    def __init__(self) -> None:
        super().__init__()
        self.called: set[int] = set()
        self.was_traced = False
        self.needs_no_warning = False
        self.seen_without_gradient: set[int] = set()
        self.key = key_of(self)

    def refuse(self, module: nn.Module, name: str) -> None:
        for other in acting_on(module):
            if isinstance(other, LayerInterceptor):
                refuse_second(f"layer {name!r}", other.handle, other.rule_name)

    def note_traced(self) -> None:
        self.was_traced = True

    def act_for(self, outer: LayerInterceptor) -> None:
        """Act as a part of another one, on its modules."""
        self.modules = outer.modules

    def row_now(self, row: Row, key: int) -> Row | None:
        """Return the row of the layer with that identity after its calls; None: it has none."""
        return row

    def around_forward(self, original: type, method: Method) -> Method:
        under_rule = self.wrap_forward(original, method)

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                ask_mode(self.key, "note_traced")
            else:
                self.called.add(id(module))
            if not is_compiling() and is_around_region() and not acts_in_regions(self, module):
                return method(module, *args, **kwargs)
            output = under_rule(module, *args, **kwargs)
            if not self.needs_no_warning and not is_compiling():
                self.note_gradient(module, (args, kwargs), output)
            return output

        return forward

    def note_gradient(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Warn when a layer is trained a second time and the rule never gets a gradient."""
        tensors = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
        if any(map(may_have_gradient, tensors)):
            self.needs_no_warning = True
        elif getattr(output, "requires_grad", False):  # only its weights get gradients
            if id(module) in self.seen_without_gradient:
                self.needs_no_warning = True  # warn once
                warnings.warn(
                    f"rule {self.rule_name!r} acts nowhere: the input of {self.name_of(module)} "
                    "needs no gradient, and a rule on a layer is for that of its input. Select a "
                    "later layer, or call the model with x.requires_grad_()",
                    ActsNowhereWarning,
                    stacklevel=4,
                )
            self.seen_without_gradient.add(id(module))

    def wrap_forward(self, original: type, method: Method) -> Method:
        raise NotImplementedError


class OnThisThread(Acting):
    """Applies an `Acting` that was taken off, for the thread that runs a region again."""

    def __init__(self, acting: Acting) -> None:
        super().__init__()
        self.acting = acting
        self.thread = threading.get_ident()

    def wrap(self, original: type, name: str, method: Method) -> Method:
        under_rule = self.acting.wrap(original, name, method)
        if under_rule is method:
            return method

        @functools.wraps(method)
        def forward(*args: Any, **kwargs: Any) -> Any:
            is_region = threading.get_ident() == self.thread
            return (under_rule if is_region else method)(*args, **kwargs)

        return forward


@contextmanager
def acting_again(acting: Acting, module: nn.Module) -> Iterator[None]:
    """Let something act on a module as in a region's first run, even if it was taken off since."""
    if acting in acting_on(module):
        yield
        return
    on_this_thread = OnThisThread(acting)
    try:
        put_on(module, on_this_thread, "")
        yield
    finally:
        take_off(on_this_thread)


# --- the rules ------------------------------------------------------------------------------------
class PlainRuleOnLayer(LayerInterceptor):
    """A rule that reads no weights acts on the gradient of a layer's input."""

    def __init__(self, rule: PlainRule) -> None:
        super().__init__()
        self.rule = rule
        self.rule_name = rule.name

    def wrap_forward(self, original: type, method: Method) -> Method:
        forward = self._wrap_any(method)
        operation = ACTIVATION_OF.get(original)
        if operation is not None:
            forward = self._wrap_activation(operation, method, forward)
        return forward

    def _wrap_any(self, method: Method) -> Method:
        first = next(iter(list(inspect.signature(method).parameters)[1:]), "input")

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not args and first in kwargs:
                args = (kwargs.pop(first),)
            inputs: tuple[Any, ...] = args or (None,)
            x, *other_inputs = inputs
            self.check(module, x, other_inputs, kwargs)

            def call(tensor: Tensor) -> Any:
                return method(module, tensor, *other_inputs, **kwargs)

            where = lambda: self.name_of(module)
            if getattr(module, "inplace", None) is True:
                # The rule must see x as it was before the layer wrote into it.
                return x.copy_(self.rule.apply(x.clone(), lambda copy: call(copy.clone()), where))
            return self.rule.apply(x, call, where)

        return forward

    def _wrap_activation(self, operation: str, method: Method, general: Method) -> Method:
        rule, numbers = self.rule, tuple(ACTIVATIONS[operation])

        def forward(module: Any, input: Any) -> Any:
            if not isinstance(input, torch.Tensor) or not input.is_floating_point():
                return general(module, input)
            if not may_have_gradient(input):
                # The first run of a reentrant region has no gradients; it draws as the second does.
                rule.draw_along(input)
                return method(module, input)
            act = rule.activation(operation, (input,), {n: getattr(module, n) for n in numbers})
            if act is None:
                return general(module, input)
            if getattr(module, "inplace", False):
                act = rule.in_place[operation]
            # Rules on operations must not see the operations of our own code.
            if stack_length():
                with torch._C.DisableTorchFunction():
                    return act(input)
            return act(input)

        return forward

    def check(self, module: nn.Module, x: Any, rest: Sequence[Any], kwargs: Any) -> None:
        """Raise an error unless a layer is called with one tensor that a gradient passes."""
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            if not (rest or kwargs):
                return
            active = [
                each
                for each in pytree.tree_leaves((rest, kwargs))
                if isinstance(each, torch.Tensor) and may_have_gradient(each)
            ]
            if not active:
                return
            subject = f"{len(active) + 1} tensors that a gradient may pass"
            advice = "select the layers inside it"
        elif isinstance(x, torch.Tensor):
            subject = f"a tensor of {x.dtype}, which has no gradient"
            advice = "select a layer that takes its output"
        else:
            subject = f"{'no tensor' if x is None else f'a {type(x).__name__}'} by position"
            advice = "select the layers inside it"
        raise RuleValueError(
            f"{self.name_of(module)} is called with {subject}, and rule {self.rule.name!r} acts on "
            f"the gradient of one input: {advice}"
        )


class RuleOnHeldFunction(Acting):
    """A rule acts on a function that a module holds as an attribute, whenever it is called there.

    A property of the class takes precedence over the module's own dict, which stays unchanged.
    Dynamo (torch 2.13) reads the dict first, so the module's forward is left to eager code.
    """

    def __init__(self, rule: PlainRule, attribute: str) -> None:
        super().__init__()
        self.rule = rule
        self.attribute = attribute

    def refuse(self, module: nn.Module, name: str) -> None:
        for other in acting_on(module):
            if isinstance(other, RuleOnHeldFunction) and other.attribute == self.attribute:
                refuse_second(f"function {name!r}", other.handle, other.rule.name)

    def around_forward(self, original: type, method: Method) -> Method:
        in_eager_code = dynamo.disable(method)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return (in_eager_code if is_compiling() else method)(*args, **kwargs)

        return forward

    def attributes(self) -> dict[str, property]:
        attribute = self.attribute

        def get(module: Any) -> Any:
            own_attributes = vars(module)
            if attribute not in own_attributes:
                raise AttributeError(attribute)
            function = own_attributes[attribute]
            return self.put_on_function(module, function) if callable(function) else function

        def put(module: Any, value: Any) -> None:
            vars(module)[attribute] = value

        def delete(module: Any) -> None:
            del vars(module)[attribute]

        return {attribute: property(get, put, delete)}

    def put_on_function(self, module: nn.Module, function: Callable[..., Any]) -> Any:
        """Return a function with the rule's gradient for its first argument."""

        def call(x: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and is_around_region() and not acts_in_regions(self, module):
                return function(x, *args, **kwargs)

            def forward(tensor: Tensor) -> Any:
                return function(tensor, *args, **kwargs)

            name = self.modules.get(id(module), (None, self.attribute))[1]
            return self.rule.apply(x, forward, lambda: f"function {name!r}")

        return call


class RuleOnCallsInside(LayerInterceptor):
    """A rule acts on the calls within layers; None keeps the gradients of them all."""

    def __init__(self, rule: Any, merges: bool = False) -> None:
        super().__init__()
        self.rule_name = named(rule)
        self.must_act, self.needs_no_warning = rule is not None, rule is None
        self.mode = OperationMode(rules_inside(rule, merges))
        self.mode.entered_by.add(id(self))
        self.merges = merges

    def act_for(self, outer: LayerInterceptor) -> None:
        super().act_for(outer)
        self.mode.entered_by.add(id(outer))

    def wrap_forward(self, original: type, method: Method) -> Method:
        mode, must_act, merges = self.mode, self.must_act, self.merges

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            count_before = mode.count()
            with mode:
                output = method(module, *args, **kwargs)
            if must_act and count_before == mode.count():
                refuse_unfit(self.name_of(module), self.rule_name, module)
            if merges:
                name_layer(output, self.path_of(module))
            return output

        return forward


@dynamo.disable
def refuse_unfit(where: str, rule: str, module: nn.Module) -> None:
    raise RuleValueError(unfit_message(where, rule, kind_of(module)))


class RuleOnMergedNorm(LayerInterceptor):
    """A batch normalization forms one layer with the layer whose output it takes, under that
    layer's rule; after anything else it has its own rule, or none.

    Attributes:
        met: by a normalization's identity, the rules of its eager calls, each with the layer that
            it was merged with; a dict for its order.
    """

    def __init__(self, own: LayerInterceptor | None) -> None:
        super().__init__()
        self.own = own
        self.rule_name = "merged" if own is None else own.rule_name
        self.met: dict[int, dict[str, None]] = {}
        if own is not None:
            own.act_for(self)

    def row_now(self, row: Row, key: int) -> Row | None:
        if key not in self.met:
            return replace(row, rule=f"{row.rule}, or merged")
        return replace(row, rule=", ".join(self.met[key])) if self.met[key] else None

    def wrap_forward(self, original: type, method: Method) -> Method:
        unmerged = method if self.own is None else self.own.wrap_forward(original, method)

        def forward(module: Any, input: Any) -> Any:
            mark = find_mark(module, input)
            # Where no rule acts the table says nothing of it, as after a layer of a constant.
            acts = not is_compiling() and (
                mark is not None
                or (torch.is_grad_enabled() and input.requires_grad and parameter_of(input) is None)
            )
            met = self.met.setdefault(id(module), {}) if acts else {}
            if mark is None:
                met.update({} if self.own is None else {self.own.rule_name: None})
                return unmerged(module, input)
            name = self.path_of(module)
            layer = note_reader(mark[-1], mark[1].kind, name)
            met[f"{mark[0].name} (merged with {layer})"] = None
            output = call_merged(mark, module, method)
            name_layer(output, f"{layer}, {name}")
            return output

        return forward


class RuleByOrder(LayerInterceptor):
    """One of several layers of which the first that the model calls has another rule.

    Attributes:
        either: what acts on it if it is the first, and if not.
    """

    def __init__(self, mode: Any, either: Sequence[LayerInterceptor]) -> None:
        super().__init__()
        self.mode = mode
        self.either = either
        self.rule_name = " or ".join(each.rule_name for each in either)
        for each in either:
            each.act_for(self)

    def is_first(self) -> bool:
        mode = self.mode
        mode.first = mode.first or self.key
        return mode.first == self.key

    def row_now(self, row: Row, key: int) -> Row | None:
        if not self.mode.first:
            return replace(row, rule=self.rule_name)
        acting = self.either[self.mode.first != self.key]
        has_rule = not isinstance(acting, RuleOnCallsInside) or acting.must_act
        return replace(row, rule=acting.rule_name) if has_rule else None

    def wrap_forward(self, original: type, method: Method) -> Method:
        as_first, as_other = [each.wrap_forward(original, method) for each in self.either]
        key = self.key

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            is_first = ask_mode(key, "is_first") if is_compiling() else self.is_first()
            return (as_first if is_first else as_other)(module, *args, **kwargs)

        return forward
