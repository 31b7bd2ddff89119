"""`KernelStep`: the whole training step of an executor whose parameters are in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from typing_extensions import override

from deep5.core.events import StepInfo, check_info
from deep5.core.executors import GraphExecutor, ParameterGroup
from deep5.core.tensors import Array, Arrays, to_numpy
from deep5.training.groups import partition_by_dtype, require_trained
from deep5.training.kernel import RuleKernel, bind_groups
from deep5.training.loss_scale import LossScale
from deep5.training.pipeline import GradientPipeline, modified
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import Modifier, RuleStep, by_updates, refuse_inside

__all__ = ["KernelStep"]


class KernelStep(RuleStep):
    """Forward and backward pass by the executor, update by one compiled kernel in place.

    See `RuleStep` for the other arguments and the errors.

    Args:
        executor: Its parameters must be contiguous host memory that NumPy can view.
        threads: Maximum number of threads of the kernel.
        locate: Returns the addresses of the executor's own gradients of the last call, by name; None if one is not
            contiguous. If given, the gradients are not inspected through NumPy, and `gradients` is not called, so that
            the executor may reuse the memory in the next step. Gradients of `apply` and of a modifier are inspected.
        spend: Called after a whole step: its gradients are consumed, and `accumulate` must not add to them.

    Attributes:
        how: `"c"` or `"numpy"`: how the rule runs.
    """

    def __init__(
        self,
        executor: GraphExecutor,
        rule: UpdateRule,
        *,
        loss: str = "loss",
        groups: Sequence[ParameterGroup] = (),
        modifier: Modifier | None = None,
        pipeline: GradientPipeline | None = None,
        threads: int = 1,
        locate: Callable[[Sequence[str]], Sequence[int] | None] | None = None,
        spend: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(rule, loss, modifier)
        self._executor, self._locate, self._spend, self._threads = executor, locate, spend, threads
        self._live = executor.parameters()
        self._dynamic: LossScale | None = None
        self._kernels: list[RuleKernel] = []
        self._traced = 0
        self._build(groups, pipeline or GradientPipeline())

    def _build(self, groups: Sequence[ParameterGroup], pipeline: GradientPipeline) -> None:
        rule, live = self.rule, self._live
        kernels = [
            bind_groups(rule, parts, threads=self._threads, pipeline=pipeline, fused=self._modifier is None)
            for parts in partition_by_dtype(self._executor.network.trained_specs, groups, live)
        ]
        for kernel in kernels:
            kernel.attach({name: to_numpy(live[name]) for name in kernel.names})
        names = tuple(name for kernel in kernels for name in kernel.names)
        require_trained(rule, live, names)
        # The rest cannot fail: a rebuilt step is either the old one or the new one.
        self._kernels, self.pipeline = kernels, pipeline
        self.how = kernels[0].how if kernels else "c"
        self._traced += max((kernel.traces for kernel in kernels), default=0)
        # Frozen parameters have no gradient; without any, the executor's fast path needs no checks.
        self._wrt: dict[str, Any] = {} if len(names) == len(self._executor.network.trained_specs) else {"wrt": names}
        self._clips_norm = any(kernel.clips_norm for kernel in kernels)
        # Sums over the model cover all kernels; each kernel only has its own part.
        self._shared = len(kernels) > 1 and (rule.scope == "model" or self._clips_norm)
        self._scales = pipeline.loss_scale is not None
        if pipeline.dynamic and self._dynamic is None:
            self._dynamic = LossScale(self._executor.network.outputs[self._loss].dtype)
        self._prepares = any(kernel.prepares for kernel in kernels)
        self.averages = any(kernel.averages for kernel in kernels)

    @property
    def traces(self) -> int:
        """How often the rule was traced: once, and again whenever `regroup` was called."""
        return self._traced

    @override
    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        outputs = self.backprop(inputs, info)
        try:
            addresses = self._located() if self._modifier is None else None
            if addresses is None:
                self._apply(self._executor.gradients(), info)
            elif self._scales or self._shared:
                self._update_in_phases(addresses, info)
            else:
                for kernel, own in zip(self._kernels, addresses, strict=True):
                    kernel.update_from(own, info)
        except BaseException:
            self.cancel()
            raise
        self._spend()
        return outputs

    @override
    def backprop(
        self,
        inputs: Arrays,
        info: StepInfo,
        on_gradient: Callable[[str, Array], None] | None = None,
        *,
        accumulate: bool = False,
        loss_scale: float = 1.0,
    ) -> Arrays:
        if self._inside:
            refuse_inside()
        check_info(info)
        if self._prepares:
            own = self._updates(info)
            for kernel in self._kernels:
                kernel.prepare(own)
        # Pass on only requested options: the executor's fast path needs no checks.
        options: dict[str, Any] = self._wrt
        if self._scales or accumulate or loss_scale != 1.0:
            options = {**options, "accumulate": accumulate, "loss_scale": self._scaled(loss_scale)}
        try:
            if on_gradient is not None:
                return self._executor.inference_and_backprop(
                    inputs, self._loss, info=info, on_gradient=on_gradient, **options
                )
            return self._executor.inference_and_backprop(inputs, self._loss, info=info, **options)
        except BaseException:
            self.cancel()
            raise

    @override
    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        try:
            check_info(info)
            self._apply(gradients, info)
        except BaseException:
            self.cancel()
            raise

    def _apply(self, gradients: Arrays, info: StepInfo) -> None:
        if self._modifier is not None:
            # Whether to skip the step depends on the gradient itself, not on the modified one.
            if self._dynamic is not None and not self._begun_finite(self._checked(gradients), info):
                self._skip()
                return
            gradients = self._modified(self._modifier, gradients)
        kept = self._checked(gradients)
        self._update_in_phases([[address for address, _ in own] for own in kept], info)

    def _checked(self, gradients: Arrays) -> list[list[tuple[int, Any]]]:
        """The gradients of each kernel, each with its address and a reference that keeps its memory alive.

        They come from the caller, so all are checked before the first update: a rejected step has changed nothing.
        Copies have to outlive the call.
        """
        return [self._found(kernel, gradients) for kernel in self._kernels]

    def _modified(self, modifier: Modifier, gradients: Arrays) -> dict[str, Array]:
        parameters = self._live
        given = [(name, gradients[name]) for kernel in self._kernels for name in kernel.names if name in gradients]
        if self._scales:
            factor = 1.0 / self.loss_scale
            given = [(name, grad * factor) for name, grad in given]
        return {name: modified(modifier, name, parameters[name], grad) for name, grad in given}

    def _updates(self, info: StepInfo) -> StepInfo:
        return info if self._dynamic is None else by_updates(info, self._dynamic.skipped)

    def _found(self, kernel: RuleKernel, gradients: Arrays) -> list[tuple[int, Any]]:
        """The gradients of a kernel, each with its address and a reference that keeps its memory alive."""
        given = {name: to_numpy(gradients[name]) for name in kernel.names if name in gradients}
        return [(array.__array_interface__["data"][0], array) for array in kernel.check_gradients(given)]

    def _located(self) -> list[Sequence[int]] | None:
        """The addresses of the executor's own gradients, per kernel; None if they have to be inspected."""
        found = []
        for kernel in self._kernels:
            addresses = None if self._locate is None else self._locate(kernel.names)
            if addresses is None:
                return None
            found.append(addresses)
        return found

    def _update_in_phases(self, addresses: Sequence[Sequence[int]], info: StepInfo) -> None:
        """The update, if sums over the model cover several kernels, or the loss is scaled."""
        own, scale = self._updates(info), self.loss_scale
        for kernel, places in zip(self._kernels, addresses, strict=True):
            kernel.begin(places, own, scale)
        if self._dynamic is not None and self._modifier is None and not self._finite():
            self._skip()
            return
        if self._clips_norm:
            _add_up([kernel.norm_square() for kernel in self._kernels])
        sums = [kernel.rule_sums() for kernel in self._kernels]
        if self.rule.scope == "model":
            _add_up(sums)
        for kernel in self._kernels:
            kernel.update_after_sums()
        if self._dynamic is not None:
            self._dynamic.update(finite=True)

    def _begun_finite(self, kept: Sequence[Sequence[tuple[int, Any]]], info: StepInfo) -> bool:
        for kernel, own in zip(self._kernels, kept, strict=True):
            kernel.begin([address for address, _ in own], self._updates(info), self.loss_scale)
        return self._finite()

    def _finite(self) -> bool:
        return all(kernel.finite() for kernel in self._kernels)

    def _skip(self) -> None:
        """Skip the update of a non-finite gradient: only the scale changes."""
        self.cancel()
        if self._dynamic is not None:
            self._dynamic.update(finite=False)

    def _before_regrouping(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Undo `backprop`: the live memory holds the parameters again, not the gradient's point."""
        for kernel in self._kernels:
            kernel.cancel()

    @contextmanager
    def _evaluation_point(self) -> Iterator[None]:
        with ExitStack() as stack:
            for kernel in self._kernels:
                stack.enter_context(kernel.averaged())
            yield

    def _rule_state(self) -> dict[str, Any]:
        return {key: np.array(value) for kernel in self._kernels for key, value in kernel.state_views().items()}

    def state_views(self) -> dict[str, Any]:
        """Like `state_dict`, but views of the live memory: read them before the next step."""
        found: dict[str, Any] = {key: value for kernel in self._kernels for key, value in kernel.state_views().items()}
        return found if self._dynamic is None else {**found, **self._dynamic.state_dict()}

    def _load_rule_state(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        for number, kernel in enumerate(self._kernels, start=1):
            own = set(kernel.names)
            part = {key: rest.pop(key) for key in list(rest) if key.partition("/")[2] in own}
            # Unknown entries go to the last kernel, whose message names them.
            kernel.load_state_dict({**part, **rest} if number == len(self._kernels) else part)


def _add_up(parts: Sequence[np.ndarray]) -> None:
    """Put the sum of the arrays into each of them, added in their order."""
    if len(parts) > 1:
        total = np.sum(parts, axis=0)
        for part in parts:
            part[...] = total
