"""`EngineOperatorExecutor`: one operator on an engine that runs networks forward; its gradients are networks, too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from deep5.core.errors import NetworkError, OperatorError, ShapeError, Unsupported
from deep5.core.executors import OperatorExecutor
from deep5.core.memo import remember
from deep5.core.operator import Operator
from deep5.core.tensors import Array, Device, TensorSpec, to_numpy
from deep5.networks.gradients import vjp_network
from deep5.networks.labels import Labels, label_inputs
from deep5.networks.network import Network
from deep5.networks.run_modes import Forms
from deep5.networks.single import Single
from deep5.networks.transforms.lowering import lowered
from deep5.operators.arguments import check_output_grads, wanted_gradients
from deep5.operators.contract import check_outputs, is_floating, name_of, spec_of
from deep5.operators.native import NativeOperator
from deep5.operators.plan import check_arrays
from deep5.training.gradient_executor import Run, has_gradient

if TYPE_CHECKING:
    from deep5.core.framework import Framework

__all__ = ["EngineOperatorExecutor", "host_arrays"]

# Compiled networks hold memory, so the cache is smaller than for cheap entries.
_PROGRAMS = 64


@dataclass(slots=True)
class _Made:
    """A runnable network.

    Attributes:
        run: The engine's.
        outputs: Specifications of the operator's outputs.
        labels: Inputs to check before the engine reads them.
        checked: Whether the results were compared with `outputs`; shapes are static, so once is enough.
    """

    run: Run
    outputs: tuple[TensorSpec, ...]
    labels: Sequence[Labels]
    checked: bool = False


class EngineOperatorExecutor(OperatorExecutor, ABC):
    """Base of operator executors on engines with NumPy arrays; implements `OperatorExecutor`.

    For each combination of input shapes and element types, a network of one node is compiled, and another for forward
    and backward.

    Args:
        operator: A Python, C++ or ONNX operator.
        framework: The back-end.
        device: Where the engine runs.

    Raises:
        Unsupported: The operator is a function of a framework.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> executor = d5.framework("onnxruntime").operator_executor(d5.ONNXOperator("Mul"))
    >>> isinstance(executor, d5.EngineOperatorExecutor)
    True
    >>> a, b = executor.arrays(np.array([2.0, 3.0], np.float32), np.array([5.0, 7.0], np.float32))
    >>> outputs, gradients = executor.inference_and_backprop((a, b), executor.arrays(np.ones(2, np.float32)))
    >>> outputs[0].tolist(), [gradient.tolist() for gradient in gradients]
    ([10.0, 21.0], [[5.0, 7.0], [2.0, 3.0]])
    """

    def __init__(self, operator: Operator, framework: Framework, *, device: Device) -> None:
        if isinstance(operator, NativeOperator):
            raise Unsupported(
                f"{name_of(operator)} is a function of {operator.framework}'s arrays, and {framework.name} only "
                "runs networks; allowed: deep5's operators, and d5.ONNXOperator; remedy: "
                f"d5.framework({operator.framework!r})"
            )
        self.operator, self.device = operator, device
        self._framework, self._single = framework, Single(operator)
        self._made: dict[Any, _Made] = {}

    @abstractmethod
    def compile(self, network: Network) -> Run:
        """Make a network without parameters or announced outputs runnable; see `GradientExecutor`.

        Args:
            network: One node, or the node with its gradient.

        Returns:
            A function that runs it; see `Run`.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """As read back from the engine; see `OperatorExecutor.settings`."""

    def suited(self, network: Network) -> Network:
        """A network with gradients in other operators, if the engine lacks these.

        Args:
            network: The network with gradients, after all expansions.
        """
        return network

    @override
    def arrays(self, *values: Array) -> tuple[Array, ...]:
        """See `OperatorExecutor.arrays`; native arrays are NumPy's."""
        return host_arrays(self.operator, values)

    @override
    def inference(self, *inputs: Array) -> tuple[Array, ...]:
        """See `OperatorExecutor.inference`."""
        try:
            made = self._made[None, tuple([(value.shape, value.dtype) for value in inputs])]
        except (KeyError, AttributeError, TypeError):
            made = self._make(inputs, None)
        return self._run(made, inputs)

    @override
    def inference_and_backprop(
        self, inputs: Sequence[Array], output_grads: Sequence[Array], *, needs: Sequence[bool] | None = None
    ) -> tuple[tuple[Array, ...], tuple[Array | None, ...]]:
        """See `OperatorExecutor.inference_and_backprop`."""
        name = name_of(self.operator)
        check_arrays(name, inputs)
        wanted = wanted_gradients(name, inputs, needs)
        if not any(wanted):
            return self.inference(*inputs), (None,) * len(inputs)
        try:
            made = self._made[wanted, tuple([(value.shape, value.dtype) for value in inputs])]
        except KeyError:
            made = self._make(inputs, wanted)
        seeds = check_output_grads(name, made.outputs, output_grads, np.ndarray)
        found = self._run(made, (*inputs, *(seed for seed in seeds if seed is not None)))
        count = len(made.outputs)
        gradients = iter(found[count:])
        return found[:count], tuple(next(gradients) if want else None for want in wanted)

    def discard_programs(self) -> None:
        """Recompile at the next call: the options of compiled programs are fixed."""
        self._made.clear()

    def synchronize(self) -> None:
        """Return immediately: the engine has finished when a call returns."""

    def _run(self, made: _Made, inputs: Sequence[Array]) -> tuple[Array, ...]:
        try:
            for labels in made.labels:
                labels.check(inputs[labels.position])
            results, _ = made.run(inputs)
        except (OperatorError, ShapeError):
            raise
        except Exception as error:
            check_arrays(name_of(self.operator), inputs)  # arrays of another framework may have the same key
            if isinstance(error, NetworkError):
                raise OperatorError(f"{name_of(self.operator)} failed: {error}") from error
            raise
        found = tuple(results)
        if not made.checked:
            check_outputs(self.operator, found[: len(made.outputs)], made.outputs)
            made.checked = True
        return found

    def _make(self, inputs: Sequence[Any], wanted: tuple[bool, ...] | None) -> _Made:
        check_arrays(name_of(self.operator), inputs)
        network = self._single.network([spec_of(value) for value in inputs])
        outputs = tuple(network.outputs.values())
        forms = Forms(network, self._framework)
        form = forms.evaluation
        if wanted is not None:
            names = [name for name, want in zip(network.inputs, wanted, strict=True) if want]
            if not any(is_floating(spec.dtype) for spec in outputs):
                raise Unsupported(f"{name_of(self.operator)} has no gradient: no output is a floating-point number")
            product = vjp_network(lowered(forms.differentiated, has_gradient), names)
            form = forms.checked(self.suited(forms.lowered(product)))
        key = wanted, tuple([(value.shape, value.dtype) for value in inputs])
        made = _Made(self.compile(form), outputs, label_inputs(network))
        return remember(self._made, key, made, room=_PROGRAMS)


def host_arrays(operator: Operator, values: Sequence[Array]) -> tuple[np.ndarray, ...]:
    """Values as C-contiguous, aligned NumPy arrays in native byte order, copied only if necessary.

    Raises:
        ShapeError: A value is not an array.
    """
    made = []
    for number, value in enumerate(values):
        try:
            array = to_numpy(value)
        except Unsupported as error:
            raise ShapeError(f"{name_of(operator)}: value {number}: {error}") from error
        array = np.asarray(array, array.dtype.newbyteorder("="))
        made.append(np.require(array, requirements=("C", "A")))
    return tuple(made)
