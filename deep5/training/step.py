"""`KernelStep`: the whole training step of an executor whose parameters live in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from deep5.events import StepInfo
from deep5.executors import GraphExecutor, ParameterGroup
from deep5.networks.executor import check_callable, check_info
from deep5.tensors import Array, Arrays, to_numpy
from deep5.training.groups import partition, require_trained
from deep5.training.kernel import RuleKernel, bind_rule
from deep5.training.rule import UpdateRule

__all__ = ["KernelStep"]

Modifier = Callable[[str, Array, Array], Array]


class KernelStep:
    """Forward and backward by the executor, the update by one compiled kernel in place.

    Args:
        executor: Its parameters must be contiguous host memory that NumPy can view.
        rule: The update rule.
        loss: Name of the scalar output to differentiate.
        groups: Parameter groups; the first that matches a name gives its hyperparameters.
        modifier: `gradient_modifier(name, param, grad) -> grad`.
        threads: How many threads the kernel may use.
        locate: Addresses of the executor's own gradients of the last call, by name; None where one is not contiguous.
            Where given, they are not looked at through NumPy, and `gradients` is not even called, so that the executor
            may write to the same memory in the next step. Gradients of `apply` and of a modifier are looked at.
        spend: Called after a whole step: its gradients are used up, and `accumulate` must not add to them.

    Raises:
        RuleError: The rule breaks its contract, all parameters are frozen, or a group sets an unknown hyperparameter
            or matches nothing.
        UsageError: `groups` is no sequence of groups, a group's `match` gives no bool, or `modifier` is no function.
    """

    def __init__(
        self,
        executor: GraphExecutor,
        rule: UpdateRule,
        *,
        loss: str = "loss",
        groups: Sequence[ParameterGroup] = (),
        modifier: Modifier | None = None,
        threads: int = 1,
        locate: Callable[[Sequence[str]], Sequence[int] | None] | None = None,
        spend: Callable[[], None] = lambda: None,
    ) -> None:
        check_callable("modifier", modifier, "(name, param, grad) -> grad")
        self._executor, self.rule, self._loss, self._modifier = executor, rule, loss, modifier
        self._locate, self._spend = locate, spend
        live = executor.parameters()
        self._kernels = [
            bind_rule(rule, specs, threads=threads, hyper=hyper)
            for specs, hyper in partition(executor.network.parameters, groups, live)
        ]
        for kernel in self._kernels:
            kernel.attach({name: to_numpy(live[name]) for name in kernel.names})
        names = tuple(name for kernel in self._kernels for name in kernel.names)
        require_trained(rule, live, names)
        # Frozen parameters have no gradient; where there are none, the executor's fast path asks no questions.
        self._wrt: dict[str, Any] = {} if len(names) == len(live) else {"wrt": names}
        # Sums over the model run over all kernels; each alone knows only its own part.
        self._shared_sums = rule.scope == "model" and len(self._kernels) > 1
        self._prepares = any(kernel.prepares for kernel in self._kernels)
        self.averages = any(kernel.averages for kernel in self._kernels)

    @property
    def how(self) -> str:
        """`"c"` or `"numpy"`: how the rule runs."""
        return self._kernels[0].how if self._kernels else "c"

    @property
    def traces(self) -> int:
        """How often the rule was traced; once a group."""
        return max((kernel.traces for kernel in self._kernels), default=0)

    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """One whole step; see `TrainStep`."""
        outputs = self.backprop(inputs, info)
        try:
            addresses = self._located() if self._modifier is None else None
            if addresses is None:
                self.apply(self._executor.gradients(), info)
            else:
                self._update_from(addresses, info)
        except BaseException:
            self._cancel()
            raise
        self._spend()
        return outputs

    def backprop(
        self, inputs: Arrays, info: StepInfo, on_gradient: Callable[[str, Array], None] | None = None
    ) -> Arrays:
        """Forward and backward at the rule's point; see `TrainStep`."""
        check_info(info)
        if self._prepares:
            for kernel in self._kernels:
                kernel.prepare(info)
        try:
            if on_gradient is not None:
                return self._executor.inference_and_backprop(
                    inputs, self._loss, info=info, on_gradient=on_gradient, **self._wrt
                )
            return self._executor.inference_and_backprop(inputs, self._loss, info=info, **self._wrt)
        except BaseException:
            self._cancel()
            raise

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The update; see `TrainStep`.

        Raises:
            ShapeError: A gradient is missing, or of another shape or dtype than its parameter.
        """
        check_info(info)
        if self._modifier is not None:
            parameters = self._executor.parameters()
            gradients = {
                name: self._modifier(name, parameters[name], grad)
                for name, grad in gradients.items()
                if name in parameters
            }
        # They come from outside, so every one is looked at, and all before the first update: a step that is refused has
        # changed nothing. What is copied has to outlive the call.
        kept = [self._found(kernel, gradients) for kernel in self._kernels]
        self._update_from([[address for address, _ in own] for own in kept], info)

    def _found(self, kernel: RuleKernel, gradients: Arrays) -> list[tuple[int, Any]]:
        """The gradients of a kernel, each with its address and what keeps it there."""
        given = {name: to_numpy(gradients[name]) for name in kernel.names if name in gradients}
        return [(array.__array_interface__["data"][0], array) for array in kernel.check_gradients(given)]

    def _located(self) -> list[Sequence[int]] | None:
        """The addresses of the executor's own gradients, a kernel each; None where they have to be looked at."""
        found = []
        for kernel in self._kernels:
            addresses = None if self._locate is None else self._locate(kernel.names)
            if addresses is None:
                return None
            found.append(addresses)
        return found

    def _update_from(self, addresses: Sequence[Sequence[int]], info: StepInfo) -> None:
        if self._shared_sums:
            self._update_with_shared_sums(addresses, info)
        else:
            for kernel, own in zip(self._kernels, addresses, strict=True):
                kernel.update_from(own, info)

    def _cancel(self) -> None:
        """Where no update can follow: the live memory holds the parameters again, not the point of the gradient."""
        for kernel in self._kernels:
            kernel.cancel()

    def _update_with_shared_sums(self, addresses: Sequence[Sequence[int]], info: StepInfo) -> None:
        parts = [kernel.partial_sums(own, info) for kernel, own in zip(self._kernels, addresses, strict=True)]
        total = np.sum(parts, axis=0)
        for kernel, part in zip(self._kernels, parts, strict=True):
            part[...] = total
            kernel.update_after_sums()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While inside, the executor holds `eval_param`; see `TrainStep`."""
        with ExitStack() as stack:
            for kernel in self._kernels:
                stack.enter_context(kernel.averaged())
            yield

    def state_dict(self) -> dict[str, Any]:
        """The rule's state as NumPy arrays, copied."""
        return {key: value for kernel in self._kernels for key, value in kernel.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit for bit."""
        rest = dict(state)
        for number, kernel in enumerate(self._kernels, start=1):
            own = set(kernel.names)
            part = {key: rest.pop(key) for key in list(rest) if key.partition("/")[2] in own}
            # What belongs to nobody goes to the last kernel, whose message names it.
            kernel.load_state_dict({**part, **rest} if number == len(self._kernels) else part)
