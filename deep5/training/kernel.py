"""`bind_rule`: an update rule as one kernel that works in place on host memory.

The memory may belong to PyTorch, NumPy, ONNX Runtime, a parameter server, etc. The rule is traced once, emitted as C
and compiled once; without a compiler the same expressions run in NumPy, chunk by chunk, and `how` reports this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from deep5.core import compiler
from deep5.core.errors import ShapeError, UsageError
from deep5.core.events import StepInfo
from deep5.core.tensors import TensorSpec
from deep5.training.chunked import run_chunks, run_phase
from deep5.training.emit_c import TOTALS, emit_c, phases
from deep5.training.given import StepNumbers
from deep5.training.kernel_arrays import checked_gradients, checked_parameters
from deep5.training.kernel_memory import CHUNK, KernelMemory, address_of
from deep5.training.master_weights import SHORT_FLOATS, HostMasters, widened
from deep5.training.pipeline import GradientPipeline
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import refuse_inside
from deep5.training.whole import run_whole

__all__ = ["RuleKernel", "bind_groups", "bind_rule"]

Parts = Sequence[tuple[Mapping[str, TensorSpec], Mapping[str, float]]]


def bind_rule(
    rule: UpdateRule,
    specs: Mapping[str, TensorSpec],
    *,
    threads: int = 1,
    hyper: Mapping[str, float] | None = None,
    pipeline: GradientPipeline | None = None,
    backend: str | None = None,
) -> RuleKernel:
    """Trace a rule and build its kernel for these parameters.

    Args:
        rule: Its hyperparameters are read at every step, so they may change.
        specs: The parameters by name, of one floating dtype, with static shapes. float16 and bfloat16 are updated as
            `GradientPipeline.master_weights` says, in float32 or by NumPy.
        threads: Maximum number of threads; results do not depend on it.
        hyper: Values that replace the rule's hyperparameters (a parameter group's).
        pipeline: Clipping, decay and scaling, in the same kernel.
        backend: `"c"` or `"numpy"`; None: C if there is a compiler.

    Raises:
        RuleError: The rule breaks its contract, or the pipeline does not fit it.
        ShapeError: Parameters of several dtypes, or of one that is not floating-point.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> rule, weights = d5.SGD(lr=0.5), {"w": np.zeros(2, np.float32)}
    >>> kernel = d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(2,))}, backend="numpy")
    >>> kernel.attach(weights)
    >>> kernel.update({"w": np.array([1, 2], np.float32)}, d5.StepInfo(step=0, batch_size=1))
    >>> rule.lr = 0.25  # read at the next step, without another trace
    >>> kernel.update({"w": np.array([1, 2], np.float32)}, d5.StepInfo(step=1, batch_size=1))
    >>> weights["w"].tolist(), kernel.how, kernel.traces
    ([-0.75, -1.5], 'numpy', 1)
    """
    return bind_groups(rule, [(specs, hyper or {})], threads=threads, pipeline=pipeline, backend=backend)


def bind_groups(
    rule: UpdateRule,
    parts: Parts,
    *,
    threads: int = 1,
    pipeline: GradientPipeline | None = None,
    fused: bool = True,
    backend: str | None = None,
) -> RuleKernel:
    """`bind_rule` for several groups of parameters with their own hyperparameters: still one kernel.

    Args:
        rule: As for `bind_rule`.
        parts: The parameters of each group, and the group's own values, which are read at every step.
        threads: As for `bind_rule`.
        pipeline: As for `bind_rule`.
        fused: Whether the kernel divides gradients by the loss scale; otherwise they are already divided.
        backend: As for `bind_rule`.

    Raises:
        RuleError: As for `bind_rule`, or a group sets an unknown hyperparameter.
        ShapeError: As for `bind_rule`.
    """
    shapes = [tuple(map(int, spec.shape)) for specs, _ in parts for spec in specs.values()]
    numbers = StepNumbers(rule, pipeline, [hyper for _, hyper in parts], fused=fused, shapes=shapes)
    return RuleKernel(numbers, [specs for specs, _ in parts], threads=threads, backend=backend)


class RuleKernel:
    """A rule bound to parameters; made by `bind_rule`.

    Attributes:
        how: `"c"` for a compiled kernel, `"numpy"` for chunked NumPy; a rule that depends on shapes runs in NumPy.
        traces: How often the rule was traced: once, whatever its hyperparameters do.
        names: The parameters, in the order of `update_from`.
        stored: Element type of the parameters and gradients.
        dtype: Element type of the update.
        prepares: Whether the gradient is taken at another point than the parameter (`prepare` must be called).
        averages: Whether evaluation uses another value than the parameter (`averaged`).
        clips_norm: Whether the pipeline clips by the norm of all gradients.
    """

    def __init__(
        self,
        numbers: StepNumbers,
        groups: Sequence[Mapping[str, TensorSpec]],
        *,
        threads: int,
        backend: str | None,
    ) -> None:
        self._numbers, self._traced, self.rule, self.traces = numbers, numbers.traced, numbers.rule, 1
        specs = {name: spec for group in groups for name, spec in group.items()}
        dtypes = {spec.dtype for spec in specs.values()}
        if len(dtypes) != 1 or not dtypes <= {"float32", "float64", *SHORT_FLOATS}:
            allowed = f"one of float32, float64, {', '.join(SHORT_FLOATS)} for all of them"
            raise ShapeError(f"parameters of dtype {sorted(dtypes)}; allowed: {allowed}")
        self.names, self.stored = tuple(specs), dtypes.pop()
        self.dtype, own = self.stored, specs
        self._rules = [numbers.traced_of(tuple(map(int, spec.shape))) for spec in specs.values()]
        if self.stored in SHORT_FLOATS and numbers.pipeline.master_weights is not False:
            self.dtype = "float32"
            for traced in self._rules:
                own = widened(specs, traced, self.rule)
        self._groups = [index for index, group in enumerate(groups) for _ in group]
        self._phases_of = {id(traced): phases(traced) for traced in (self._traced, *self._rules)}
        self._phases = {name: phase for own in self._phases_of.values() for name, phase in own.items()}
        self.prepares, self.averages = "prepare" in self._phases, "evaluate" in self._phases
        self.clips_norm = "norm" in self._phases
        # C has no portable arithmetic for short types, and NumPy calls a library for products of matrices.
        portable = self.dtype not in SHORT_FLOATS and not numbers.shaped
        load = compiler.load_library if backend == "c" else compiler.optional_library
        compiled = portable and backend != "numpy"
        self._library = load(emit_c(self._traced, self.dtype), functions=list(self._phases)) if compiled else None
        self.how = "numpy" if self._library is None else "c"
        self._calls = {name: getattr(self._library, name) for name in self._phases} if self._library else {}
        for call in self._calls.values():
            call.argtypes, call.restype = (ctypes.c_void_p,), None
        self._held = held = KernelMemory(
            self._rules,
            own,
            self._groups,
            width=numbers.width,
            per_tensor=self.rule.scope == "tensor",
            scratch=max(len(phase.scalars) for phase in self._phases.values()),
            threads=threads,
        )
        self.sizes, self._shapes = held.sizes, held.shapes
        self._scalars, self._state = held.scalars, held.state
        self._memory, self._grad, self._given = held.tables, held.grad, held.given
        self._master = held.packed() if self.prepares or self.averages else None
        self._live: list[np.ndarray] = []
        self._masters = None if self.dtype == self.stored else HostMasters(held, self.names, self.stored)
        # Whether the live memory holds the gradient's point or the evaluation value, and `_master` the parameter.
        self._prepared = self._averaging = False
        self._pointer = ctypes.addressof(held.arguments)

    def attach(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Bind the live parameters, which are updated in place from now on, and initialize the state.

        Args:
            parameters: C-contiguous arrays over the live memory, by name.

        Raises:
            ShapeError: One is missing, strided, read-only, or of another shape or dtype.
        """
        live = checked_parameters(self.names, self._shapes, self.stored, parameters)
        if self._masters is not None:
            self._masters.attach(live)
            live = list(self._masters.masters)
        self._live, self._prepared = live, False
        self._memory["live"][:] = [address_of(view) for view in live]
        # If nothing is prepared, only `averaged` fills `_master`.
        self._memory["param"][:] = [address_of(view) for view in (self._master if self.prepares else None) or live]
        self._set_given(StepInfo(batch_size=1))
        given = self._given_by_name()
        for tensor, (group, parameter) in enumerate(zip(self._groups, live, strict=True)):
            traced = self._rules[tensor]
            arrays = {"param": parameter.reshape(self._shapes[tensor]) if self._numbers.shaped else parameter}
            found = run_phase(traced.states, given[group], arrays, self.dtype)
            for index, name in enumerate(self._scalars):
                if name in traced.scalars:
                    self._memory["scalar_state"][tensor, index] = found[name]
            for name in traced.arrays:
                self._state[name][tensor][...] = np.reshape(found[name], -1)

    def _given_by_name(self) -> list[dict[str, float]]:
        names, values = self._traced.given, self._memory["given"].tolist()
        width, groups = len(names), range(max(self._groups, default=0) + 1)
        return [dict(zip(names, values[group * width : (group + 1) * width], strict=True)) for group in groups]

    def _set_given(self, info: StepInfo, scale: float = 1.0) -> None:
        if values := self._numbers.values(info, scale):
            self._given[:] = values

    def prepare(self, info: StepInfo) -> None:
        """Before the gradient: save the parameter and replace it by the gradient's point.

        Several gradients may be taken before one update: a second call also starts from the parameter.

        Raises:
            UsageError: Inside `averaged`.
        """
        if self.prepares:
            if self._averaging:
                refuse_inside()
            self._set_given(info)
            if not self._prepared:
                self._keep()
            self._substitute("prepare")
            self._prepared = True

    def cancel(self) -> None:
        """Undo `prepare` if no update can follow: the live memory holds the parameter again."""
        if self._prepared:
            self._restore()
            self._prepared = False

    def _keep(self) -> None:
        if self._masters is not None:
            self._masters.absorb()
        for kept, live in zip(self._master or (), self._live, strict=True):
            kept[...] = live

    def _restore(self) -> None:
        for kept, live in zip(self._master or (), self._live, strict=True):
            live[...] = kept
        if self._masters is not None:
            self._masters.publish()

    def _substitute(self, phase: str) -> None:
        before = self._memory["param"].copy()
        self._memory["param"][:] = [address_of(view) for view in self._master or ()]
        self._run(phase)
        self._memory["param"][:] = before

    def update(self, gradients: Mapping[str, np.ndarray], info: StepInfo) -> None:
        """One update in place from gradients by name.

        Raises:
            ShapeError: A gradient is missing or of another shape or dtype.
        """
        kept = self.check_gradients(gradients)  # copies have to outlive the call
        self.update_from([address_of(array) for array in kept], info)

    def check_gradients(self, gradients: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The gradients in the kernel's order, contiguous; see `checked_gradients`."""
        return checked_gradients(self.names, self._shapes, self.stored, gradients)

    def update_from(self, addresses: Sequence[int], info: StepInfo) -> None:
        """One update in place from the addresses of contiguous gradients, in the order of `names`.

        The addresses are not checked: this path is for executors, which know their own memory.

        Raises:
            UsageError: `attach`, or `prepare` if the rule needs it, was not called; or the call is inside `averaged`.
        """
        self.begin(addresses, info)
        if self.clips_norm:
            self._run("norm")
        if "sums" in self._phases:
            self._run("sums")
        self._run("update")
        self._prepared = False

    def begin(self, addresses: Sequence[int], info: StepInfo, scale: float = 1.0) -> None:
        """The first part of `update_from`, for callers that sum over several kernels: sets the numbers of the step.

        Args:
            addresses: As for `update_from`.
            info: As for `update_from`.
            scale: The loss scale if it is dynamic.

        Raises:
            UsageError: As for `update_from`.
        """
        if self._averaging:
            refuse_inside()
        if not self._live or self._prepared != self.prepares:
            call = "prepare(info)" if self._live else "attach(parameters)"
            raise UsageError(f"an update by {type(self.rule).__name__} before {call}; remedy: call it first")
        if self._masters is None:
            self._grad[:] = addresses
        else:
            self._masters.read_gradients(addresses)
            if not self._prepared:
                self._masters.absorb()
        self._set_given(info, scale)

    def finite(self) -> bool:
        """After `begin`, if the pipeline scales the loss: whether every element of the gradients is finite."""
        self._run("overflow")
        return bool(self._memory["totals"][TOTALS.index("overflow")] == 0.0)

    def norm_square(self) -> np.ndarray:
        """After `begin`, if the pipeline clips by norm: the square of the norm over this kernel's parameters.

        Shape (1,); the caller adds it up across kernels and shards and writes the sum back into the returned array.
        """
        self._run("norm")
        index = TOTALS.index("norm")
        total: np.ndarray = self._memory["totals"][index : index + 1]
        return total

    def rule_sums(self) -> np.ndarray:
        """After `begin`, and after the norm is known: the rule's sums, as `partial_sums` returns them."""
        if "sums" in self._phases:
            self._run("sums")
        sums: np.ndarray = self._memory["sums"]
        return sums

    def partial_sums(self, addresses: Sequence[int], info: StepInfo) -> np.ndarray:
        """The rule's sums over these gradients, shape (parameters or 1, sums).

        The caller adds them up across shards and writes the sums back into the returned array before
        `update_after_sums`.
        """
        self.begin(addresses, info)
        if self.clips_norm:
            self._run("norm")
        return self.rule_sums()

    def update_after_sums(self) -> None:
        """The second half of `update_from`, after `partial_sums`."""
        self._run("update")
        self._prepared = False

    def _run(self, phase: str) -> None:
        if self._library is not None:
            self._calls[phase](self._pointer)
        elif self._numbers.shaped:
            run_whole(
                phase,
                [self._phases_of[id(traced)].get(phase) for traced in self._rules],
                self._rules,
                given=self._given_by_name(),
                memory=self._memory,
                state=self._state,
                shapes=self._shapes,
                scalars=self._scalars,
                per_tensor=self.rule.scope == "tensor",
                dtype=self.dtype,
            )
        else:
            run_chunks(
                self._phases[phase],
                self._traced,
                given=self._given_by_name(),
                memory=self._memory,
                state=self._state,
                sizes=self.sizes,
                per_tensor=self.rule.scope == "tensor",
                dtype=self.dtype,
                chunk=CHUNK,
            )
        if self._masters is not None and phase in ("prepare", "update", "evaluate"):
            self._masters.publish()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the context, the live parameters hold `eval_param`; exit restores them, also after an exception.

        Reentrant (an export during evaluation).

        Raises:
            UsageError: The call is between `prepare` and the update, or a step is requested inside.
        """
        if not self.averages or self._averaging:
            yield
            return
        if self._prepared:
            raise UsageError("evaluation between backprop and apply; remedy: finish the step first")
        self._set_given(StepInfo(batch_size=1))
        self._keep()
        self._averaging = True
        try:
            self._substitute("evaluate")
            yield
        finally:
            self._restore()
            self._averaging = False

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state as copies, `"<state>/<parameter>"`, master weights included; states of shape () in float64."""
        return {key: view.copy() for key, view in self.state_views().items()}

    def state_views(self) -> dict[str, np.ndarray]:
        """Like `state_dict`, but views of the live memory: read them before the next update."""
        found = self._held.state_views()
        return found if self._masters is None else {**found, **self._masters.views()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict` exactly.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape or dtype.
        """
        if self._masters is None:
            self._held.load_state(state)
        else:
            self._masters.load_state(state, self._held.load_state)
