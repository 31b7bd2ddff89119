"""`ONNXOperator`: an operator of the ONNX standard, on any framework, as a network of one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from deep5.core.errors import ShapeError, Unsupported, UsageError
from deep5.core.operator import Operator
from deep5.core.tensors import Array, TensorSpec
from deep5.networks.diagnostics.refusals import unknown_operator
from deep5.networks.edit.builder import NetworkBuilder
from deep5.networks.network import Network
from deep5.networks.onnx.versions import OPSET

__all__ = ["ONNXOperator"]


class ONNXOperator(Operator):
    """An ONNX operator, to run on a framework's executor: it contains no code itself.

    Args:
        op_type: ONNX's name: `"Conv"`, `"MatMul"`, `"LSTM"`.
        outputs: The number of outputs to compute.
        attributes: ONNX's attributes, by name.

    Attributes:
        title: ONNX's name.

    Raises:
        UsageError: Unknown ONNX operator.

    >>> ONNXOperator("MatMul").specs(TensorSpec(shape=(2, 3)), TensorSpec(shape=(3, 4)))[0].shape
    (2, 4)
    """

    def __init__(self, op_type: str, *, outputs: int = 1, **attributes: Any) -> None:
        if not isinstance(op_type, str) or not onnx.defs.has(op_type, OPSET, ""):
            raise UsageError(unknown_operator(str(op_type), OPSET))
        self.op_type, self.outputs, self.attributes = op_type, outputs, attributes
        self.title = op_type

    def specs(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The specifications of the outputs, as inferred by ONNX.

        Args:
            inputs: Specifications of the inputs.
        """
        return tuple(self.network(inputs).outputs.values())

    def network(self, inputs: Sequence[TensorSpec]) -> Network:
        """The network of this single node, with inputs `x0`, `x1`, … and outputs `y0`, `y1`, ….

        Args:
            inputs: Specifications of the node's inputs, all of which are inputs of the network.

        Raises:
            NetworkError: The operator does not accept these inputs.
            ShapeError: An output's shape does not follow from the inputs' shapes.
        """
        build = NetworkBuilder(self.op_type)
        given = [build.input(f"x{number}", spec.shape, spec.dtype) for number, spec in enumerate(inputs)]
        made = build.op(self.op_type, *given, outputs=self.outputs, **self.attributes)
        network = build.network({f"y{n}": value for n, value in enumerate(made if self.outputs > 1 else (made,))})
        for name, spec in network.outputs.items():
            if not all(isinstance(extent, int) for extent in spec.shape) and all(
                isinstance(extent, int) for own in inputs for extent in own.shape
            ):
                raise ShapeError(
                    f"{self.op_type}: the shape of output {name} depends on what the inputs hold; allowed: operators "
                    "whose outputs have shapes that follow from those of the inputs"
                )
        return network

    def forward(self, *inputs: Array) -> Any:
        """Not supported: a framework runs the operator.

        Args:
            inputs: Not used.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported(f"{self.op_type} is run by a framework; remedy: d5.framework(NAME).operator_executor(…)")

    def backward(
        self,
        output_grads: Sequence[Array | None],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        needs: Sequence[bool],
    ) -> Sequence[Array | None]:
        """Not supported: a framework differentiates the operator.

        Args:
            output_grads: Not used.
            inputs: Not used.
            outputs: Not used.
            needs: Not used.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported(
            f"{self.op_type} is differentiated by a framework; remedy: d5.framework(NAME).operator_executor(…)"
        )
