"""A rule over one call: of a layer's forward, of an operation.

Where the call is one of our activations its rule's own Function does both passes; any other forward
stays as it is, on a constant, and gets the rule's gradient (`multigrad.models.interpose`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from multigrad.errors import RuleValueError
from multigrad.models.handle import named
from multigrad.models.interpose import RuleOver, check_fit
from multigrad.rules.in_force.activation import Activation
from multigrad.rules.model.rule import resolve

from .. import dynamo
from ..compile.regions import is_first_without_gradients, top_hooks
from ..versions import is_exporting
from .layer_kinds import ACTIVATIONS, WITH_WEIGHTS

Tensor: TypeAlias = torch.Tensor
Call = Callable[..., Any]
transforms_active = torch._C._are_functorch_transforms_active
stack_length = torch._C._len_torch_function_stack
is_compiling = torch.compiler.is_compiling

# A tensor's attribute: what a batch normalization needs of the layer that made it.
MERGES = "_multigrad_merges"


class PlainRule:
    """A rule that acts on the one tensor which a call computes its output from."""

    def __init__(self, rule: Any) -> None:
        self.rule = resolve(rule)
        self.name = named(rule)
        self.over = RuleOver(rule)  # a wrong rule or param is said here
        self.activations = {name: Activation(name, rule) for name in ACTIVATIONS}
        self.in_place = {name: InPlace(act) for name, act in self.activations.items()}

    def activation(
        self, operation: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Activation | None:
        """Return our activation for a call of an operation, None where it is another function."""
        settings = ACTIVATIONS.get(operation)
        if settings is None:
            return None
        for position, (name, value) in enumerate(settings.items(), start=1):
            given = args[position] if len(args) > position else kwargs.get(name, value)
            if given != value:
                return None
        return self.activations[operation]

    def apply(self, x: Tensor, forward: Call, where: Callable[[], str]) -> Tensor:
        """Return what a forward computes of x, with the rule's gradient.

        Args:
            x: a tensor that may require a gradient.
            forward: of the tensor alone.
            where: says what is called, for messages.

        Raises:
            RuleValueError: it returns something else than a tensor, or writes into x.
            GradientError: the rule gives another shape than that of x.
        """
        if not may_have_gradient(x):
            self.draw_along(x)
            out = forward(x)
            self.check_shape(x, out, where)
            return out
        looks = not is_compiling() and not transforms_active()
        version = x._version if looks else 0
        out = forward(x.detach())
        if not isinstance(out, torch.Tensor):
            raise RuleValueError(
                f"{where()} returns a {type(out).__name__}, and rule {self.name!r} acts on the "
                "gradient of one tensor: select the layers inside of it, or an operation that it "
                "calls"
            )
        if looks and x._version != version:
            raise RuleValueError(
                f"{where()} writes into its input, so rule {self.name!r} would act on another "
                "one: select the layer or operation inside of it that does"
            )
        self.check_shape(x, out, where)
        # What a Function returns of its input is a view of it.
        rule = self.over.now() if is_compiling() else self.over.here()
        return rule(x, out).clone()

    def call(
        self, name: str, func: Call, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call an operation under the rule, for the one activation that it takes.

        Raises:
            RuleValueError: it takes several.
        """
        if kwargs.get("out") is not None:
            return func(*args, **kwargs)  # torch takes no derivative of that
        x = args[0] if args else kwargs.get("input")
        refuse_symbols(name, x)
        act = self.activation(name, args, kwargs) if isinstance(x, torch.Tensor) else None
        if act is not None:
            if not may_have_gradient(x):
                self.draw_along(x)
                return func(*args, **kwargs)
            return self.in_place[name](x) if in_place else act(x)
        places = [*enumerate(args), *kwargs.items()]
        if name in WITH_WEIGHTS:
            places = places[:1]
        floats = [
            (place, leaf)
            for place, value in places
            for leaf in (value if isinstance(value, tuple | list) else (value,))
            if isinstance(leaf, torch.Tensor)
            and leaf.is_floating_point()
            and not isinstance(leaf, torch.nn.Parameter)
        ]
        active = [row for row in floats if may_have_gradient(row[1])]

        def where() -> str:
            return f"operation {name!r}"

        if not active:
            if name == "embedding":
                raise RuleValueError(
                    f"operation {name!r} takes integers: rule {self.name!r} has no gradient there"
                )
            self.draw_along(x)
            out = func(*args, **kwargs)
            if len(floats) == 1:
                self.check_shape(floats[0][1], out, where)
            return out
        place, x = active[0]
        if len(active) > 1 or isinstance(dict(places)[place], tuple | list):
            raise RuleValueError(
                f"operation {name!r} is called with {len(active)} tensors that a gradient passes, "
                f"and rule {self.name!r} is for one: select layers, or write the operation with "
                "xg.custom_gradient"
            )

        def forward(given: Tensor) -> Any:
            if isinstance(place, int):
                return func(*args[:place], given, *args[place + 1 :], **kwargs)
            return func(*args, **{**kwargs, place: given})

        if not in_place:
            return self.apply(x, forward, where)

        def forward_beside(given: Tensor) -> Any:
            return forward(given.clone())

        return x.copy_(self.apply(x.clone(), forward_beside, where))

    def draw_along(self, x: Any) -> None:
        """Draw as the rule would, in the first run of a reentrant region, where no tensor has a
        gradient yet: so its second run draws the same, and the next step draws anew.
        """
        if is_compiling() or not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return
        if is_first_without_gradients():
            with torch.no_grad():
                self.over.here()(x, x)

    def check_shape(self, x: Tensor, out: Any, where: Callable[[], str]) -> None:
        """Check that a forward keeps the shape, as the rule does, whether or not there is a
        gradient.

        Raises:
            GradientError: it does not.
        """
        if not isinstance(out, torch.Tensor) or out.shape == x.shape:
            return
        refuse_shape(self.name, where(), x, out)


@dynamo.disable
def refuse_shape(rule: str, where: str, x: Tensor, out: Tensor) -> None:
    """Raise an error, which code that is traced cannot."""
    check_fit(rule, where, x.shape, out.shape)


@dynamo.disable
def refuse(message: str) -> None:
    """Raise an error, which code that is traced cannot."""
    raise RuleValueError(message)


def may_have_gradient(x: Tensor) -> bool:
    """Return whether somebody may take a derivative by x."""
    if transforms_active() or (x.requires_grad and torch.is_grad_enabled()):
        return True
    if is_compiling():
        return is_exporting()  # what was exported may be asked for one later
    return torch.autograd.forward_ad._current_level >= 0


def refuse_symbols(operation: str, x: Any) -> None:
    """Refuse what torch.fx traces with.

    Raises:
        RuleValueError: it is that.
    """
    if isinstance(x, torch.fx.Proxy):
        raise RuleValueError(
            f"torch.fx traces operation {operation!r}, and its graph would hold no rule: trace the "
            "model first, and attach to the GraphModule"
        )


class InPlace:
    """An activation that leaves its result in the tensor that it is given."""

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        # Of the classes that autograd made for its Function: whether backward reads the input.
        self._reads: dict[type, bool] = {}
        self._clones = False

    def __call__(self, x: Tensor) -> Tensor:
        """Return x, which holds the activation of what it held, with the rule's gradient."""
        if getattr(x, MERGES, None) is not None:
            setattr(x, MERGES, None)
        if is_compiling() or transforms_active() or top_hooks(True) is not None:
            return x.copy_(self.activation(x.clone()))
        is_leaf = x.is_leaf and x.requires_grad
        if is_leaf or x._is_view() or x._backward_hooks or x.retains_grad:
            return x.copy_(self.activation(x.clone()))  # which says what torch says
        y = self.activation(x.clone() if self._clones else x)
        kind = type(y.grad_fn)
        if kind not in self._reads:
            self._reads[kind] = self._clones = reads(y.grad_fn, x) or self._clones
            if self._clones:
                y = self.activation(x.clone())
        # Else backward would fill a gradient of what x was with zeros, and add it.
        return x.detach_().copy_(y)


def reads(node: Any, x: Tensor) -> bool:
    """Return whether a node of autograd's graph has saved x."""
    saved = getattr(node, "saved_tensors", None)
    if saved is None:  # it is not a Function's
        return True
    place = x.untyped_storage().data_ptr()
    return any(each is not None and each.untyped_storage().data_ptr() == place for each in saved)
