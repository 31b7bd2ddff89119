"""What a back-end makes: executors of networks and of operators, whole training steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError
from deep5.core.events import StepInfo
from deep5.core.network_spec import NetworkSpec
from deep5.core.operator import Operator
from deep5.core.tensors import Array, Arrays, Device

__all__ = ["GraphExecutor", "OperatorExecutor", "ParameterGroup", "StepOptimizer", "TrainStep"]


class ParameterGroup:
    """Parameters that get hyperparameters of their own.

    Args:
        match: Says of a parameter's name whether it belongs to the group, by True or False.
        frozen: The parameters stay as they are; their gradients are not computed.
        hyper: Values that replace the rule's, such as `lr=0.01`: finite numbers.

    Raises:
        UsageError: `match` cannot be called, `frozen` is no bool, or a value of `hyper` no finite number.
    """

    def __init__(self, match: Callable[[str], bool], *, frozen: bool = False, **hyper: float) -> None:
        if not callable(match):
            raise UsageError(
                f"ParameterGroup: got {type(match).__name__} as match; allowed: a function of a parameter's name, such "
                "as lambda name: name.startswith('fc')"
            )
        if not isinstance(frozen, bool):
            raise UsageError(f"ParameterGroup: got frozen={frozen!r:.60}; allowed: True or False")
        for name, value in hyper.items():
            if not is_finite(value):
                raise UsageError(
                    f"ParameterGroup: got {name}={value!r:.60}; allowed: finite numbers; remedy: {name}=0.01, say"
                )
        self.match, self.frozen = match, frozen
        self.hyper = dict(hyper)

    def describe(self) -> dict[str, Any]:
        """The group, for a recipe's hash; its predicate has to be a function with a name."""
        return {"match": self.match, "frozen": self.frozen, **self.hyper}


@runtime_checkable
class TrainStep(Protocol):
    """A whole training step, compiled as one where the framework compiles."""

    @property
    def traces(self) -> int:
        """How often the rule (and, where the framework compiles, the step) was traced."""
        ...

    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward and update; returns the network's outputs as native values.

        The step uses its gradients up: `inference_and_backprop(accumulate=True)` after it adds to none.

        Raises:
            ShapeError: As for `GraphExecutor.inference_and_backprop`: among others, an empty batch.
            UsageError: `info` is no `StepInfo`.
        """
        ...

    def backprop(
        self,
        inputs: Arrays,
        info: StepInfo,
        on_gradient: Callable[[str, Array], None] | None = None,
        *,
        accumulate: bool = False,
        loss_scale: float = 1.0,
    ) -> Arrays:
        """The first half of a step: outputs, with gradients left in the executor.

        Args:
            inputs: As for `GraphExecutor.inference`.
            info: The step; the rule's point depends on it.
            on_gradient: As for `GraphExecutor.inference_and_backprop`.
            accumulate: Add to the gradients of the call before.
            loss_scale: The gradient is that of `loss_scale * loss`, times the loss scale of the step itself.
        """
        ...

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The second half of a step: the pipeline and the update rule on these gradients.

        Args:
            gradients: As `backprop` leaves them: scaled by the loss scale of the step, if it has one.
            info: The step.

        Raises:
            ShapeError: A gradient is missing, or of another shape or dtype than its parameter; nothing has changed.
        """
        ...

    @property
    def loss_scale(self) -> float:
        """What the loss of the next step is multiplied by; 1 where it is not scaled."""
        ...

    @property
    def skipped_steps(self) -> int:
        """Steps without an update, because a gradient was not finite under a dynamic loss scale."""
        ...

    def regroup(self, groups: Sequence[ParameterGroup], pipeline: Any) -> None:
        """Other parameter groups, and stages of the pipeline, from now on; one new trace, the state stays as it is.

        Between two steps: what `backprop` has begun is given up.
        """
        ...

    def averaged(self) -> AbstractContextManager[None]:
        """While inside, the executor's parameters hold the rule's `eval_param`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state as NumPy arrays by name, copied."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit for bit."""
        ...


@runtime_checkable
class StepOptimizer(Protocol):
    """An optimizer that owns its step: native optimizers, L-BFGS, distributed schemes, a user's own loop."""

    def bind(self, executor: GraphExecutor) -> None:
        """Take hold of the executor's parameters; called once, before the first step."""
        ...

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """One step; may run the network and write parameters any number of times."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything a resume needs, as NumPy arrays and numbers by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit for bit."""
        ...


@runtime_checkable
class GraphExecutor(Protocol):
    """A network made runnable by one framework. Values stay in the framework's own memory.

    The executor owns the live parameters; `network` keeps the initial ones and is never changed. Where the network is
    native code, `network` describes it: inputs, outputs, parameters and buffers, without a graph.

    Several threads may call `inference` in evaluation at once, and each gets what it would get alone; engines whose
    memory serves one call (ONNX Runtime, OpenVINO) run them one after the other. All else is one thread's at a time:
    there is one set of parameters, of running statistics and of gradients, which training changes.
    """

    device: Device
    capabilities: frozenset[str]
    """Among `"whole_step"`, `"early_gradients"`, `"float64"`."""

    if TYPE_CHECKING:
        # Read-only, so that an executor of graphs may narrow it to `Network`.
        @property
        def network(self) -> NetworkSpec:
            """What it runs."""
            ...

    else:
        # An attribute, so that a subclass can assign it.
        network: NetworkSpec

    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        """Run forward.

        Args:
            inputs: A value for every input of the network; NumPy arrays or native ones.
            training: Whether layers that behave differently in training (batch normalisation, dropout) do so.
            info: The step that random masks are a function of.

        Returns:
            Every output of the network by name, native values. In evaluation a symbolic extent may be 0 where the
            framework runs it; means over nothing, such as the loss, are then NaN.

        Raises:
            ShapeError: A missing, unknown or misshapen input; with `training`, a symbolic extent of 0.
            NetworkError: The framework fails on these inputs.
            UsageError: `info` is no `StepInfo`.
        """
        ...

    def inference_and_backprop(
        self,
        inputs: Arrays,
        loss: str = "loss",
        *,
        info: StepInfo | None = None,
        wrt: Sequence[str] | None = None,
        accumulate: bool = False,
        loss_scale: float = 1.0,
        on_gradient: Callable[[str, Array], None] | None = None,
    ) -> Arrays:
        """Run forward in training mode and the gradient of a scalar output.

        Args:
            inputs: As for `inference`.
            loss: Name of the scalar output to differentiate.
            info: As for `inference`.
            wrt: Parameters and inputs to differentiate by; all parameters where None.
            accumulate: Add to the gradients of the call before. Where there are none, these are the first: none are
                left by a whole training step (`TrainStep.__call__`), which uses its gradients up, nor by a call that
                failed. `TrainStep.backprop` leaves its gradients, and `apply` does not touch them.
            loss_scale: The gradient is that of `loss_scale * loss`; a finite number.
            on_gradient: Called with (name, gradient) as soon as each is known, with the value that `gradients` will
                give: where `accumulate` is set, the sum.

        Returns:
            As `inference`; the gradients are read by `gradients`.

        Raises:
            ShapeError: A missing, unknown or misshapen input; a symbolic extent of 0, since the mean over an empty
                batch is NaN; with `accumulate`, the gradient by an input that has another shape than before.
            NetworkError: A label that is no class, or the framework fails on these inputs.
            UnknownName: No such loss, parameter or input.
            Unsupported: An output that cannot be differentiated.
            UsageError: `loss` or what is in `wrt` is no name, `loss_scale` no finite number, `info` no `StepInfo`,
                `on_gradient` no function.
        """
        ...

    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop`, by parameter or input name, native values.

        Raises:
            Unsupported: There are none, because a whole compiled step or nothing ran last. Where the framework
                compiles no whole steps, those of the step may still be read.
        """
        ...

    def parameters(self) -> Arrays:
        """The live parameters by name: writing to one in place changes the network that runs."""
        ...

    def buffers(self) -> Arrays:
        """The live values that training changes but no optimizer owns (running statistics), by name."""
        ...

    def read(self, names: Sequence[str], out: Array) -> None:
        """Copy parameters or buffers, one behind the other, into a contiguous NumPy array of their dtype."""
        ...

    def write(self, names: Sequence[str], packed: Array) -> None:
        """Copy a contiguous NumPy array back into parameters or buffers, in the order of `read`."""
        ...

    def train_step(
        self,
        rule: Any,
        loss: str = "loss",
        *,
        groups: Sequence[ParameterGroup] = (),
        modifier: Callable[[str, Array, Array], Array] | None = None,
        pipeline: Any = None,
    ) -> TrainStep:
        """The whole training step under an update rule.

        Args:
            rule: An `UpdateRule`. Its hyperparameters may change between steps, without a second trace.
            loss: Name of the scalar output to differentiate.
            groups: The first group that matches a parameter gives its hyperparameters.
            modifier: `gradient_modifier(name, param, grad) -> grad`, called before the rule.
            pipeline: A `GradientPipeline`: clipping, decoupled weight decay, loss scaling.

        Raises:
            RuleError: The rule breaks its contract, the pipeline does not fit it, all parameters are frozen, or a
                group matches no parameter.
            UsageError: `loss` is no output, or `groups` no sequence of groups.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Parameters, buffers and random state as NumPy arrays by name, copied; bit-exact."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit for bit."""
        ...

    def export(self, *, evaluation: bool = True) -> NetworkSpec:
        """The network with the live parameters as its initial ones.

        Args:
            evaluation: Export what evaluation uses (`eval_param`) where the rule in force defines it.

        Raises:
            Unsupported: The network is native code: there is no graph.
        """
        ...

    def synchronize(self) -> None:
        """Return when all work that this thread started has finished. A clock is read only after this."""
        ...

    def settings(self) -> dict[str, Any]:
        """Threads, dtype, TF32 and determinism as read back from the framework, not as asked for."""
        ...


@runtime_checkable
class OperatorExecutor(Protocol):
    """One operator made runnable by one framework, forward and backward, on the framework's own arrays.

    Nothing is converted within a call: what a clock around it sees is the framework's work.

    Several threads may call it at once, and each gets what it would get alone; the operator's own code, too, then runs
    in several threads. Engines whose memory serves one call (ONNX Runtime, OpenVINO) run calls of the same shapes one
    after the other.
    """

    operator: Operator
    device: Device

    def arrays(self, *values: Array) -> tuple[Array, ...]:
        """Values of NumPy (or native ones) as native arrays on the device, copied where they must be.

        Raises:
            ShapeError: A value is no array that the framework takes.
        """
        ...

    def inference(self, *inputs: Array) -> tuple[Array, ...]:
        """Run forward.

        Args:
            inputs: Native arrays, as `arrays` gives them.

        Returns:
            The outputs, native.

        Raises:
            ShapeError: Inputs that the operator does not take.
            OperatorError: It broke its contract, or failed.
        """
        ...

    def inference_and_backprop(
        self, inputs: Sequence[Array], output_grads: Sequence[Array], *, needs: Sequence[bool] | None = None
    ) -> tuple[tuple[Array, ...], tuple[Array | None, ...]]:
        """Run forward, and the vector-Jacobian product.

        Args:
            inputs: Native arrays.
            output_grads: A native array an output, of its shape; those of outputs that are no floating-point numbers
                are not looked at, and may be None.
            needs: Which inputs want a gradient; None: all floating-point ones.

        Returns:
            The outputs, and a gradient an input; None where none is wanted. A gradient may be memory of
            `output_grads` or of another gradient, where the operator's `backward` hands on what it was given: who
            writes to one copies it first.

        Raises:
            As `inference`.
            Unsupported: The operator has no gradient.
        """
        ...

    def synchronize(self) -> None:
        """Return when all work that this thread started has finished."""
        ...

    def settings(self) -> dict[str, Any]:
        """Framework, version, device, threads, TF32 and determinism as read back from the framework."""
        ...
