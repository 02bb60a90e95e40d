"""Situations: small torch classes that do more than return what a graph computes.

Each is a function that makes its class anew, with the tensors that it is called with and the code
around it, which is called as `step(apply, *tensors)`. A door is one more way to run that code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import Function

from ..harness.torch_class import torch_class

Tensor = torch.Tensor
SITUATIONS: dict[str, Callable[[], Situation]] = {}
BEYOND: set[str] = set()


class Situation(NamedTuple):
    """What is run.

    Attributes:
        function_class: the class.
        tensors: what it is called with, float tensors that ask for a gradient first.
        step: `step(apply, *tensors)` -> a tensor, or several.
        log: what the class has written into besides tensors.
    """

    function_class: type[Function]
    tensors: tuple[Tensor, ...]
    step: Callable[..., Any]
    log: Any = ()


def situation(make: Callable[[], Situation]) -> Callable[[], Situation]:
    """Add a situation to the table."""
    SITUATIONS[make.__name__] = make
    return make


def beyond(make: Callable[[], Situation]) -> Callable[[], Situation]:
    """Add a situation whose class does more than a graph holds: no transform of torch.func runs it
    as written.
    """
    BEYOND.add(make.__name__)
    return situation(make)


def x() -> Tensor:
    return torch.tensor([[0.5, -1.25, 2.0], [3.0, 0.25, -0.5]], requires_grad=True)


def w() -> Tensor:
    return torch.tensor([[1.5, -0.5, 0.25], [2.0, 1.0, -3.0]], requires_grad=True)


def call(apply: Any, *tensors: Tensor) -> Any:
    return apply(*tensors)


# --- updates --------------------------------------------------------------------------------------


@beyond
def a_running_mean_is_updated() -> Situation:
    @torch_class(lambda ctx, grad: (grad * 2, None))
    def RunningMean(ctx: Any, x: Tensor, mean: Tensor) -> Tensor:
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        ctx.save_for_backward(x)
        return x - mean

    return Situation(RunningMean, (x(), torch.zeros(3)), call)


@beyond
def an_observer_widens_its_range() -> Situation:
    @torch_class(lambda ctx, grad: (grad * ctx.saved_tensors[0], None, None))
    def Observer(ctx: Any, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        low.copy_(torch.minimum(low, x.amin()))
        high.copy_(torch.maximum(high, x.amax()))
        step = (high - low) / 15
        ctx.save_for_backward((x >= low) & (x <= high))
        return torch.round(x / step) * step

    return Situation(Observer, (x(), torch.tensor(-1.0), torch.tensor(1.0)), call)


@beyond
def a_codebook_moves_towards_its_codes() -> Situation:
    @torch_class(lambda ctx, grad: (grad, None, None))
    def Codebook(ctx: Any, x: Tensor, codes: Tensor, counts: Tensor) -> Tensor:
        nearest = (x[:, None] - codes[None]).square().sum(-1).argmin(-1)
        one_hot = torch.nn.functional.one_hot(nearest, codes.shape[0]).to(x.dtype)
        counts.mul_(0.5).add_(one_hot.sum(0), alpha=0.5)
        codes += 0.1 * (one_hot.T @ x - one_hot.sum(0)[:, None] * codes)
        return codes[nearest]

    codes = torch.tensor([[1.0, 0.0, 1.0], [2.0, 1.0, -1.0], [-1.0, -1.0, 0.0], [0.0, 3.0, 1.0]])
    return Situation(Codebook, (x(), codes, torch.ones(4)), call)


@beyond
def an_argument_marked_dirty_is_returned() -> Situation:
    @torch_class(lambda ctx, grad: grad * 3)
    def Triples(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    return Situation(Triples, (x(),), lambda apply, x: apply(x * 1))


@beyond
def an_argument_marked_dirty_is_read_and_the_result_is_not() -> Situation:
    @torch_class(lambda ctx, grad: grad * 3)
    def Triples(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    def step(apply: Any, x: Tensor) -> Tensor:
        h = x * 1
        apply(h)
        return h * h

    return Situation(Triples, (x(),), step)


@beyond
def an_update_nobody_was_told_of() -> Situation:
    @torch_class(lambda ctx, grad: grad * ctx.saved_tensors[0])
    def Shifts(ctx: Any, x: Tensor) -> Tensor:
        x -= x.amax(-1, keepdim=True)
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    def step(apply: Any, x: Tensor) -> Any:
        h = x.detach() + 1
        return apply(h) * x, h

    return Situation(Shifts, (x(),), step)


@beyond
def an_update_by_a_mask() -> Situation:
    @torch_class(lambda ctx, grad: (grad * 5, None))
    def Clears(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        state[x > 0] = 7.0
        return x * state

    return Situation(Clears, (x(), torch.ones(2, 3)), call)


@beyond
def an_update_of_a_row_by_an_index() -> Situation:
    @torch_class(lambda ctx, grad: (grad * 2, None, None))
    def Writes(ctx: Any, x: Tensor, state: Tensor, rows: Tensor) -> Tensor:
        state[rows] = x
        return state.sum(0) * x

    return Situation(Writes, (x(), torch.ones(4, 3), torch.tensor([2, 0])), call)


@beyond
def an_update_by_copy() -> Situation:
    @torch_class(lambda ctx, grad: (grad, None))
    def Remembers(ctx: Any, x: Tensor, before: Tensor) -> Tensor:
        change = x - before
        before.copy_(x)
        return change

    def step(apply: Any, x: Tensor, before: Tensor) -> Tensor:
        return apply(x, before) + apply(2 * x, before)

    return Situation(Remembers, (x(), torch.zeros(2, 3)), step)


@beyond
def a_counter_of_integers_is_updated() -> Situation:
    @torch_class(lambda ctx, grad: (grad, None))
    def Counts(ctx: Any, x: Tensor, count: Tensor) -> Tensor:
        count += 1
        return x / count

    return Situation(Counts, (x(), torch.zeros((), dtype=torch.int64)), call)


@situation
def an_update_with_setup_context() -> Situation:
    class RunningMax(Function):
        @staticmethod
        def forward(x: Tensor, high: Tensor) -> Tensor:
            high.copy_(torch.maximum(high, x.amax(0)))
            return x / high

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[1])

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            (high,) = ctx.saved_tensors
            return grad / high, None

    return Situation(RunningMax, (x(), torch.full((3,), 0.5)), call)


@beyond
def a_backward_updates_a_statistic() -> Situation:
    class Gathers(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, seen: Tensor) -> Tensor:
            ctx.seen = seen
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            ctx.seen.add_(grad.abs().sum())
            return grad * 2, None

    return Situation(Gathers, (x(), torch.zeros(())), call)


@beyond
def two_calls_share_one_state() -> Situation:
    @torch_class(lambda ctx, grad: (grad * 3, None))
    def Adds(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        state.add_(x.sum())
        return x * state

    def step(apply: Any, x: Tensor, w: Tensor, state: Tensor) -> Any:
        return apply(x, state), apply(w, state)

    return Situation(Adds, (x(), w(), torch.ones(())), step)


@beyond
def a_buffer_of_a_module_is_updated() -> Situation:
    @torch_class(lambda ctx, grad: (grad, None))
    def Moves(ctx: Any, x: Tensor, mean: Tensor) -> Tensor:
        mean.lerp_(x.mean(0), 0.25)
        return x - mean

    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, apply: Any, x: Tensor) -> Tensor:
            return apply(x, self.mean)

    norm = Norm()
    return Situation(Moves, (x(),), lambda apply, x: norm(apply, x), norm.mean)


@beyond
def a_view_of_an_argument_is_updated() -> Situation:
    @torch_class(lambda ctx, grad: (grad * 4, None))
    def FirstRow(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        state[0].add_(x.sum(0))
        return x + state[0]

    return Situation(FirstRow, (x(), torch.zeros(2, 3)), call)


@beyond
def an_argument_that_is_a_view_is_updated() -> Situation:
    @torch_class(lambda ctx, grad: (grad * 2, None))
    def Adds(ctx: Any, x: Tensor, row: Tensor) -> Tensor:
        row.add_(1)
        return x * row

    def step(apply: Any, x: Tensor, state: Tensor) -> Tensor:
        return apply(x, state[1])

    return Situation(Adds, (x(), torch.zeros(2, 3)), step)


@beyond
def a_detached_alias_is_updated() -> Situation:
    @torch_class(lambda ctx, grad: (grad * 2, None))
    def Adds(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        state.data.add_(x.detach().sum())
        return x * state

    return Situation(Adds, (x(), torch.zeros(())), call)


# --- what is written elsewhere --------------------------------------------------------------------


@beyond
def a_result_has_an_attribute() -> Situation:
    @torch_class(lambda ctx, grad: grad * 5)
    def Scales(ctx: Any, x: Tensor) -> Tensor:
        y = x * 2
        y._scale = 3.0  # type: ignore[attr-defined]
        return y

    def step(apply: Any, x: Tensor) -> Tensor:
        y = apply(x)
        return y * getattr(y, "_scale", 1.0)

    return Situation(Scales, (x(),), step)


@beyond
def a_result_has_a_tensor_for_an_attribute() -> Situation:
    @torch_class(lambda ctx, grad: grad * 5)
    def Scales(ctx: Any, x: Tensor) -> Tensor:
        y = x * 2
        y._scale = x.abs().amax()  # type: ignore[attr-defined]
        return y

    def step(apply: Any, x: Tensor) -> Any:
        y = apply(x)
        return y * getattr(y, "_scale", 1.0)

    return Situation(Scales, (x(),), step)


@beyond
def an_argument_gets_an_attribute() -> Situation:
    @torch_class(lambda ctx, grad: grad * 5)
    def Marks(ctx: Any, x: Tensor) -> Tensor:
        x._seen = 2.0  # type: ignore[attr-defined]
        return x * 2

    def step(apply: Any, x: Tensor) -> Tensor:
        h = x * 1
        y = apply(h)
        return y * getattr(h, "_seen", 1.0)

    return Situation(Marks, (x(),), step)


@beyond
def a_list_outside_is_appended_to() -> Situation:
    log: list[int] = []

    @torch_class(lambda ctx, grad: grad * 5)
    def Logs(ctx: Any, x: Tensor) -> Tensor:
        log.append(1)
        return x * 2

    return Situation(Logs, (x(),), call, log)


@beyond
def a_list_that_it_is_given_is_appended_to() -> Situation:
    log: list[int] = []

    @torch_class(lambda ctx, grad: (grad * 5, None))
    def Logs(ctx: Any, x: Tensor, log: list[int]) -> Tensor:
        log.append(1)
        return x * 2

    return Situation(Logs, (x(),), lambda apply, x: apply(x, log), log)


@beyond
def a_dict_that_it_is_given_counts_calls() -> Situation:
    state: dict[str, int] = {"calls": 0}

    @torch_class(lambda ctx, grad: (grad * 5, None))
    def Counts(ctx: Any, x: Tensor, state: dict[str, int]) -> Tensor:
        state["calls"] += 1
        return x * 2

    return Situation(Counts, (x(),), lambda apply, x: apply(x, state), state)


@beyond
def an_object_that_it_is_given_counts_calls() -> Situation:
    class State:
        calls = 0

    state = State()

    @torch_class(lambda ctx, grad: (grad * 5, None))
    def Counts(ctx: Any, x: Tensor, state: State) -> Tensor:
        state.calls = state.calls + 1
        return x * 2

    return Situation(Counts, (x(),), lambda apply, x: apply(x, state), vars(state))


@beyond
def a_list_outside_is_appended_to_in_backward() -> Situation:
    log: list[int] = []

    class Logs(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            log.append(1)
            return grad * 5

    return Situation(Logs, (x(),), call, log)


@beyond
def a_hook_on_its_argument() -> Situation:
    log: list[int] = []

    @torch_class(lambda ctx, grad: grad * 5)
    def Hooks(ctx: Any, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(lambda grad: log.append(1))
        return x * 2

    return Situation(Hooks, (x(),), call, log)


@beyond
def a_gradient_is_left_on_a_parameter() -> Situation:
    weight = torch.nn.Parameter(torch.ones(3))

    class Leaves(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            ctx.weight = weight
            return x * weight

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            ctx.weight.main_grad = (grad * x).sum(0)
            return grad * weight, None

    def step(apply: Any, x: Tensor) -> Tensor:
        return apply(x, weight)

    return Situation(Leaves, (x(),), step, weight)


# --- what graphs leave out ------------------------------------------------------------------------


@situation
def an_assertion_of_values() -> Situation:
    @torch_class(lambda ctx, grad: grad * 5)
    def Asserts(ctx: Any, x: Tensor) -> Tensor:
        assert x.abs().max() < 100
        return x * 2

    return Situation(Asserts, (x(),), call)


@situation
def a_branch_by_a_value() -> Situation:
    @torch_class(lambda ctx, grad: grad * 5 if ctx.big else grad)
    def Branches(ctx: Any, x: Tensor) -> Tensor:
        ctx.big = bool(x.max() > 1)
        return x * 2 if ctx.big else x * 3

    return Situation(Branches, (x(),), call)


@beyond
def an_update_on_one_branch_by_a_value() -> Situation:
    @torch_class(lambda ctx, grad: (grad * 5, None))
    def Updates(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        if x.max() > 1:
            state.add_(1)
        return x * state

    return Situation(Updates, (x(), torch.ones(())), call)


@beyond
def one_tensor_returned_twice() -> Situation:
    @torch_class(lambda ctx, one, two: one * 3 + two * 5)
    def Twice(ctx: Any, x: Tensor) -> Any:
        y = x * 2
        return y, y

    def step(apply: Any, x: Tensor) -> Tensor:
        a, b = apply(x)
        return a * 2 + b

    return Situation(Twice, (x(),), step)


@situation
def a_tangent_rule_of_its_own() -> Situation:
    class Pushes(Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 5

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return tangent * 7

    return Situation(Pushes, (x(),), call)


@situation
def a_tangent_rule_that_is_a_stub() -> Situation:
    class Stub(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 5

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor) -> Any:
            pass

    return Situation(Stub, (x(),), call)


@situation
def a_stored_apply_inside_of_a_class() -> Situation:
    @torch_class(lambda ctx, grad: grad * 4)
    def Inner(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    inner = Inner.apply

    @torch_class(lambda ctx, grad: grad * inner(ctx.saved_tensors[0]))
    def Outer(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return inner(x) * 2

    return Situation(Outer, (x(),), call)


@situation
def a_backward_that_is_differentiable_once() -> Situation:
    from torch.autograd.function import once_differentiable

    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 * x

    return Situation(Once, (x(),), call)


@beyond
def values_that_go_through_numpy() -> Situation:
    @torch_class(lambda ctx, grad: grad * 5)
    def ViaNumPy(ctx: Any, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)

    return Situation(ViaNumPy, (x(),), call)


@beyond
def values_that_go_through_numpy_and_are_counted() -> Situation:
    log: list[float] = []

    @torch_class(lambda ctx, grad: grad * 5)
    def Logs(ctx: Any, x: Tensor) -> Tensor:
        log.append(float(x.detach().sum()))
        return x * 2

    return Situation(Logs, (x(),), call, log)


@situation
def the_mode_decides() -> Situation:
    @torch_class(lambda ctx, grad: grad * 5)
    def Asks(ctx: Any, x: Tensor) -> Tensor:
        return x * (2 if torch.is_grad_enabled() else 3)

    return Situation(Asks, (x(),), call)


@situation
def autocast_decides() -> Situation:
    @torch_class(lambda ctx, grad: grad * 5)
    def Asks(ctx: Any, x: Tensor) -> Tensor:
        return x * (2 if torch.is_autocast_enabled("cpu") else 3)

    return Situation(Asks, (x(),), call)


@situation
def casts_for_autocast() -> Situation:
    class Casts(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w.T

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return grad @ w, grad.T @ x

    return Situation(Casts, (x(), w()), call)


@situation
def the_asked_gradients_decide() -> Situation:
    class Asks(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, w = ctx.saved_tensors
            a = grad * w if ctx.needs_input_grad[0] else None
            b = grad * x * 2 if ctx.needs_input_grad[1] else None
            return a, b

    return Situation(Asks, (x(), w()), lambda apply, x, w: apply(x, w.detach()) + apply(x, w))


@beyond
def no_zeros_for_missing_cotangents() -> Situation:
    class Missing(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, one: Any, two: Any) -> Any:
            if one is None:
                return two * 11
            return one * 5 if two is None else one * 5 + two * 7

    def step(apply: Any, x: Tensor) -> Tensor:
        return apply(x)[0] + apply(x)[1] + sum(apply(x))

    return Situation(Missing, (x(),), step)


@situation
def an_output_without_a_gradient() -> Situation:
    class Indices(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            y, i = x.sort(-1)
            ctx.mark_non_differentiable(i)
            ctx.save_for_backward(i)
            return y, i

        @staticmethod
        def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
            (i,) = ctx.saved_tensors
            return torch.zeros_like(grad).scatter(-1, i, grad * 2)

    return Situation(Indices, (x(),), lambda apply, x: apply(x)[0])


@situation
def an_argument_is_returned() -> Situation:
    @torch_class(lambda ctx, grad: -grad)
    def Passes(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    return Situation(Passes, (x(),), lambda apply, x: apply(x * 2) * 3)


@situation
def a_draw_at_random() -> Situation:
    @torch_class(lambda ctx, grad: grad * ctx.saved_tensors[0] * 2)
    def Drops(ctx: Any, x: Tensor) -> Tensor:
        keep = torch.rand_like(x) >= 0.0
        ctx.save_for_backward(keep)
        return x * keep

    return Situation(Drops, (x(),), call)


@situation
def a_weight_read_from_outside() -> Situation:
    scale = torch.tensor(3.0)

    @torch_class(lambda ctx, grad: grad * scale * 2)
    def Reads(ctx: Any, x: Tensor) -> Tensor:
        return x * scale

    def step(apply: Any, x: Tensor) -> Tensor:
        return apply(x)

    return Situation(Reads, (x(),), step)


@beyond
def a_tensor_outside_is_updated() -> Situation:
    seen = torch.zeros(3)

    @torch_class(lambda ctx, grad: grad * 2)
    def Updates(ctx: Any, x: Tensor) -> Tensor:
        seen.add_(x.sum(0))
        return x * seen

    return Situation(Updates, (x(),), call, seen)


@beyond
def a_count_on_the_class() -> Situation:
    class Counts(Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            Counts.calls += 1
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 5

    return Situation(Counts, (x(),), call, lambda: Counts.calls)


@beyond
def a_new_attribute_of_an_object_counts() -> Situation:
    class Log:
        pass

    log = Log()

    @torch_class(lambda ctx, grad: grad * 5)
    def Counts(ctx: Any, x: Tensor) -> Tensor:
        log.calls = getattr(log, "calls", 0) + 1
        return x * 2

    return Situation(Counts, (x(),), call, lambda: log.calls)


@beyond
def an_array_outside_counts() -> Situation:
    counts = np.zeros(2)

    class Counts(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            counts[0] += 1
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            counts[1] += 1
            return grad * 5

    return Situation(Counts, (x(),), call, lambda: counts.tolist())
