"""The objects that a back-end creates: executors of networks and operators, and whole training steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from deep5.core.arguments import is_finite
from deep5.core.complete import check_complete
from deep5.core.errors import UsageError
from deep5.core.events import StepInfo
from deep5.core.network_spec import NetworkSpec
from deep5.core.operator import Operator
from deep5.core.tensors import Array, Arrays, Device

__all__ = ["GraphExecutor", "OperatorExecutor", "ParameterGroup", "StepOptimizer", "TrainStep", "derive_executors_by"]

# From a subclass of `GraphExecutor` that lacks methods to a complete one, where that is possible.
_COMPLETES: list[Callable[[type[Any]], type[Any]]] = []
_MADE: dict[type[Any], type[Any]] = {}


def derive_executors_by(complete: Callable[[type[Any]], type[Any]]) -> None:
    """Let objects of incomplete subclasses of `GraphExecutor` be of the class that a function makes of theirs."""
    _COMPLETES[:] = [complete]


class ParameterGroup:
    """Parameters with their own hyperparameters.

    Args:
        match: Predicate on a parameter's name: True if the parameter belongs to the group.
        frozen: Whether the parameters stay unchanged; their gradients are then not computed.
        hyper: Finite numbers that replace the rule's, such as `lr=0.01`.

    Raises:
        UsageError: `match` is not callable, `frozen` is not a bool, or a value of `hyper` is not a finite number.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    >>> groups = [
    ...     d5.ParameterGroup(lambda name: name.startswith("fc1"), frozen=True),
    ...     d5.ParameterGroup(lambda name: name.endswith(".bias"), lr=0.2),
    ... ]
    >>> step = executor.train_step(d5.SGD(lr=0.1), groups=groups)
    >>> before = executor.state_dict()
    >>> batch = {"input": np.ones((5, 4), np.float32), "label": np.zeros(5, np.int64)}
    >>> outputs = step(batch, d5.StepInfo(batch_size=5))
    >>> [name for name, value in executor.parameters().items() if (value != before[name]).any()]
    ['fc2.weight', 'fc2.bias']
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
        """The group for a recipe's hash; its predicate must be a named function."""
        return {"match": self.match, "frozen": self.frozen, **self.hyper}


@runtime_checkable
class TrainStep(Protocol):
    """A whole training step, compiled as one unit if the framework compiles.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    >>> step = executor.train_step(d5.SGD(lr=0.5))
    >>> batch = {"input": np.ones((5, 4), np.float32), "label": np.zeros(5, np.int64)}
    >>> losses = [step(batch, d5.StepInfo(step=number, batch_size=5))["loss"] for number in range(3)]
    >>> [round(float(loss), 2) for loss in losses], step.traces
    ([2.63, 0.26, 0.12], 1)
    """

    @property
    @abstractmethod
    def traces(self) -> int:
        """How often the rule (and, if the framework compiles, the step) was traced."""
        ...

    @abstractmethod
    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward and update.

        The step consumes its gradients: `inference_and_backprop(accumulate=True)` after it adds to nothing.

        Args:
            inputs: As for `GraphExecutor.inference`.
            info: The step.

        Returns:
            The network's outputs by name, as native values.

        Raises:
            ShapeError: As for `GraphExecutor.inference_and_backprop`, for example an empty batch.
            UsageError: `info` is not a `StepInfo`.
        """
        ...

    @abstractmethod
    def backprop(
        self,
        inputs: Arrays,
        info: StepInfo,
        on_gradient: Callable[[str, Array], None] | None = None,
        *,
        accumulate: bool = False,
        loss_scale: float = 1.0,
    ) -> Arrays:
        """The first half of a step: returns the outputs and leaves the gradients in the executor.

        Args:
            inputs: As for `GraphExecutor.inference`.
            info: The step; the rule's point depends on it.
            on_gradient: As for `GraphExecutor.inference_and_backprop`.
            accumulate: Add to the gradients of the previous call.
            loss_scale: The gradient is that of `loss_scale * loss`, times the loss scale of the step itself.
        """
        ...

    @abstractmethod
    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The second half of a step: the pipeline and the update rule on these gradients.

        Args:
            gradients: As left by `backprop`: scaled by the step's loss scale, if any.
            info: The step.

        Raises:
            ShapeError: A gradient is missing, or its shape or dtype differs from its parameter's; nothing has changed.
        """
        ...

    @property
    @abstractmethod
    def loss_scale(self) -> float:
        """The factor that the loss of the next step is multiplied by; 1 without loss scaling."""
        ...

    @property
    @abstractmethod
    def skipped_steps(self) -> int:
        """Number of steps without an update because a gradient was not finite under a dynamic loss scale."""
        ...

    @abstractmethod
    def regroup(self, groups: Sequence[ParameterGroup], pipeline: Any) -> None:
        """Replace the parameter groups and the stages of the pipeline; traces once more and keeps the state.

        Call it between two steps: it discards a step begun by `backprop`.

        Args:
            groups: As for `GraphExecutor.train_step`.
            pipeline: As for `GraphExecutor.train_step`.
        """
        ...

    @abstractmethod
    def averaged(self) -> AbstractContextManager[None]:
        """Within the context, the executor's parameters hold the rule's `eval_param`."""
        ...

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state as NumPy arrays by name, copied."""
        ...

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit-identically.

        Args:
            state: The result of `state_dict`.
        """
        ...


@runtime_checkable
class StepOptimizer(Protocol):
    """An optimizer that implements its own step: native optimizers, L-BFGS, distributed schemes, custom loops.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class SignDescent:
    ...     def bind(self, executor): self.executor = executor
    ...     def step(self, inputs, info):
    ...         outputs = self.executor.inference_and_backprop(inputs, info=info)
    ...         # Values are the framework's own arrays; those of the reference are NumPy arrays, changed in place.
    ...         for name, gradient in self.executor.gradients().items():
    ...             self.executor.parameters()[name][...] -= 0.01 * np.sign(gradient)
    ...         return outputs
    ...     def state_dict(self): return {}
    ...     def load_state_dict(self, state): pass
    >>> data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    >>> trainer = d5.Trainer(executor, SignDescent(), d5.OrderedSampler(data.train, 4))
    >>> trainer.train(epochs=2); trainer.step, isinstance(trainer.optimizer, d5.StepOptimizer)
    (6, True)
    """

    @abstractmethod
    def bind(self, executor: GraphExecutor) -> None:
        """Attach to the executor's parameters; called once, before the first step.

        Args:
            executor: Runs the network and holds the parameters.
        """
        ...

    @abstractmethod
    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """One step; may run the network and write parameters any number of times.

        Args:
            inputs: A value for every input of the network.
            info: The step.

        Returns:
            The network's outputs by name, as native values.
        """
        ...

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything a resume needs, as NumPy arrays and numbers by name."""
        ...

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit-identically.

        Args:
            state: The result of `state_dict`.
        """
        ...


@runtime_checkable
class GraphExecutor(Protocol):
    """A network made executable by one framework. Values stay in the framework's memory.

    The executor owns the live parameters; `network` keeps the initial ones and is never changed. If the network is
    native code, `network` describes it: inputs, outputs, parameters and buffers, without a graph.

    Several threads may call `inference` in evaluation at once, and each gets the same result as without the others;
    engines with memory for one call (ONNX Runtime, OpenVINO) serialize the calls. All other methods may be used by one
    thread at a time: there is one set of parameters, of running statistics and of gradients, which training changes.

    A subclass with only `inference` and `inference_and_backprop` is complete: see
    `deep5.training.derived_executor.DerivedExecutor` for what they return, and what is derived.

    Attributes:
        device: Where it runs.
        capabilities: A subset of `"whole_step"`, `"early_gradients"`, `"float64"`.
        network: The network that it runs.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    >>> isinstance(executor, d5.GraphExecutor)
    True
    >>> batch = {"input": np.ones((5, 4), np.float32), "label": np.zeros(5, np.int64)}
    >>> {name: value.shape for name, value in executor.inference(batch).items()}
    {'logits': (5, 2), 'loss': ()}
    >>> outputs = executor.inference_and_backprop(batch)
    >>> {name: gradient.shape for name, gradient in executor.gradients().items()}
    {'fc1.weight': (3, 4), 'fc1.bias': (3,), 'fc2.weight': (2, 3), 'fc2.bias': (2,)}
    """

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """An object of the class, or of one that completes it.

        Raises:
            PartialClassError: A method is missing that cannot be derived.
        """
        made: type[Any] = cls
        if getattr(cls, "__abstractmethods__", None) and _COMPLETES:
            if cls not in _MADE:
                _MADE[cls] = _COMPLETES[0](cls)
            made = _MADE[cls]
        check_complete(made, GraphExecutor, enough=("inference", "inference_and_backprop"))
        completed: Self = super().__new__(made)
        return completed

    device: Device
    capabilities: frozenset[str]
    """A subset of `"whole_step"`, `"early_gradients"`, `"float64"`."""

    if TYPE_CHECKING:
        # Read-only, so that an executor of graphs may narrow it to `Network`.
        @property
        def network(self) -> NetworkSpec:
            """The network that it runs."""
            ...

    else:
        # An attribute, so that a subclass can assign it.
        network: NetworkSpec

    @abstractmethod
    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        """Run forward.

        Args:
            inputs: A value for every input of the network; NumPy arrays or native ones.
            training: Whether layers that behave differently in training (batch normalization, dropout) do so.
            info: The step that determines random masks.

        Returns:
            Every output of the network by name, as native values. In evaluation a symbolic dimension may be 0 if the
            framework supports it; means over no elements, such as the loss, are then NaN.

        Raises:
            ShapeError: A missing or unknown input, or one with the wrong shape; with `training`, a symbolic dimension
                of 0.
            NetworkError: The framework fails on these inputs.
            UsageError: `info` is not a `StepInfo`.
        """
        ...

    @abstractmethod
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
        """Run forward in training mode and compute the gradients of a scalar output.

        Args:
            inputs: As for `inference`.
            loss: Name of the scalar output to differentiate.
            info: As for `inference`.
            wrt: Parameters and inputs to differentiate with respect to; all parameters if None. Executors of deep5 also
                accept names of computed values.
            accumulate: Add to the gradients of the previous call. If there are none, start from zero: a whole training
                step (`TrainStep.__call__`) consumes its gradients, and a failed call leaves none. `TrainStep.backprop`
                leaves its gradients, and `apply` does not change them.
            loss_scale: The gradient is that of `loss_scale * loss`; a finite number.
            on_gradient: Called with (name, gradient) as soon as each is known, with the value that `gradients` will
                return: the sum if `accumulate` is set.

        Returns:
            As `inference`; read the gradients with `gradients`.

        Raises:
            ShapeError: A missing or unknown input, or one with the wrong shape; a symbolic dimension of 0, since the
                mean over an empty batch is NaN; with `accumulate`, the gradient of an input whose shape differs from
                the previous call.
            NetworkError: A label is not a class, or the framework fails on these inputs.
            UnknownName: No such loss, parameter or input.
            Unsupported: An output that cannot be differentiated.
            UsageError: `loss` or an entry of `wrt` is not a name, `loss_scale` is not a finite number, `info` is not a
                `StepInfo`, or `on_gradient` is not a function.
        """
        ...

    @abstractmethod
    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop` by parameter or input name, as native values.

        Raises:
            Unsupported: There are none, because a whole compiled step ran last, or nothing did. If the framework does
                not compile whole steps, the gradients of the step can still be read.
        """
        ...

    @abstractmethod
    def parameters(self) -> Arrays:
        """The live parameters by name; writing to one in place changes the running network."""
        ...

    @abstractmethod
    def buffers(self) -> Arrays:
        """The live values that training changes without an optimizer (running statistics), by name."""
        ...

    @abstractmethod
    def read(self, names: Sequence[str], out: Array) -> None:
        """Copy parameters or buffers, concatenated, into a contiguous NumPy array of their dtype.

        Args:
            names: Names of parameters or buffers of one dtype.
            out: Receives their elements, in the order of `names`.
        """
        ...

    @abstractmethod
    def write(self, names: Sequence[str], packed: Array) -> None:
        """Copy a contiguous NumPy array back into parameters or buffers, in the order of `read`.

        Args:
            names: As for `read`.
            packed: Their elements, in the order of `names`.
        """
        ...

    @abstractmethod
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
            rule: An `UpdateRule`. Its hyperparameters may change between steps without retracing.
            loss: Name of the scalar output to differentiate.
            groups: The first group that matches a parameter determines its hyperparameters.
            modifier: `gradient_modifier(name, param, grad) -> grad`, called before the rule.
            pipeline: A `GradientPipeline`: clipping, decoupled weight decay, loss scaling.

        Raises:
            RuleError: The rule breaks its contract, the pipeline does not fit it, all parameters are frozen, or a
                group matches no parameter.
            UsageError: `loss` is not an output, or `groups` is not a sequence of groups.
        """
        ...

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Parameters, buffers and random state as NumPy arrays by name; bit-exact copies."""
        ...

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit-identically.

        Args:
            state: The result of `state_dict`.
        """
        ...

    @abstractmethod
    def export(self, *, evaluation: bool = True) -> NetworkSpec:
        """The network with the live parameters as its initial values.

        Args:
            evaluation: Export the parameters for evaluation (`eval_param`) if the current rule defines them.

        Raises:
            Unsupported: The network is native code and has no graph.
        """
        ...

    @abstractmethod
    def synchronize(self) -> None:
        """Block until all work started by this thread has finished. Read clocks only after this."""
        ...

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Threads, dtype, TF32 and determinism as read back from the framework, not as requested."""
        ...


@runtime_checkable
class OperatorExecutor(Protocol):
    """One operator made executable by one framework, forward and backward, on the framework's native arrays.

    No conversion happens within a call, so a clock around it measures only the framework's work.

    Several threads may call it at once, and each gets the same result as without the others; the operator's own code
    then runs in several threads, too. Engines with memory for one call (ONNX Runtime, OpenVINO) serialize calls with
    the same shapes.

    Attributes:
        operator: The operator that it runs.
        device: Where it runs.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> executor = d5.framework("reference").operator_executor(d5.ONNXOperator("MatMul"))
    >>> a, b, ones = executor.arrays(np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4)))
    >>> (product,) = executor.inference(a, b)
    >>> product.shape
    (2, 4)
    >>> (product,), (by_a, by_b) = executor.inference_and_backprop((a, b), (ones,))
    >>> by_a.shape, by_b.shape, float(by_a[0, 0])
    ((2, 3), (3, 4), 4.0)
    """

    operator: Operator
    device: Device

    @abstractmethod
    def arrays(self, *values: Array) -> tuple[Array, ...]:
        """NumPy or native values as native arrays on the device, copied if necessary.

        Args:
            values: Arrays, one per operand.

        Raises:
            ShapeError: A value is not an array that the framework accepts.
        """
        ...

    @abstractmethod
    def inference(self, *inputs: Array) -> tuple[Array, ...]:
        """Run forward.

        Args:
            inputs: Native arrays, as returned by `arrays`.

        Returns:
            The outputs as native arrays.

        Raises:
            ShapeError: The operator does not accept the inputs.
            OperatorError: It broke its contract, or failed.
        """
        ...

    @abstractmethod
    def inference_and_backprop(
        self, inputs: Sequence[Array], output_grads: Sequence[Array], *, needs: Sequence[bool] | None = None
    ) -> tuple[tuple[Array, ...], tuple[Array | None, ...]]:
        """Run forward and compute the vector-Jacobian product.

        Args:
            inputs: Native arrays.
            output_grads: One native array per output, of its shape; entries of outputs that are not floating-point are
                ignored and may be None.
            needs: Which inputs need a gradient; None: all floating-point ones.

        Returns:
            The outputs, and one gradient per input, None if not needed. A gradient may share memory with `output_grads`
            or with another gradient if the operator's `backward` passes an array through: copy it before writing to it.

        Raises:
            ShapeError: As for `inference`.
            OperatorError: As for `inference`.
            Unsupported: The operator has no gradient.
        """
        ...

    @abstractmethod
    def synchronize(self) -> None:
        """Block until all work started by this thread has finished."""
        ...

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Framework, version, device, threads, TF32 and determinism as read back from the framework."""
        ...
