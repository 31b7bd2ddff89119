"""Networks of one node for a given operator, so that engines that run networks can run it."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Sequence
from typing import Any

from deep5.core.operator import Operator
from deep5.core.tensors import TensorSpec
from deep5.networks.edit.builder import NetworkBuilder
from deep5.networks.network import Network
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.contract import name_of, specs_of
from deep5.operators.registry import forget_operator, register_operator

__all__ = ["Single"]

_DOMAIN = "deep5.single"
_NUMBERS = itertools.count()


class Single:
    """Creates networks of one node for an operator.

    A node's operator is found by its name: as long as this object lives, the operator is registered under a unique name
    in a private domain, and the node refers to this very object, whatever its attributes.

    Args:
        operator: Any operator except another framework's.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        if isinstance(operator, ONNXOperator):
            return
        # The name in messages may be any string, but a node's operator must be a C identifier.
        self._name = f"{re.sub('[^A-Za-z0-9_]', '_', name_of(operator))}_{next(_NUMBERS)}"
        if self._name[0].isdigit():
            self._name = f"_{self._name}"

        class Held(Operator):
            """A class whose only instance is the given operator, of another class."""

            def __new__(cls) -> Any:
                return operator

        register_operator(self._name, domain=_DOMAIN)(Held)
        weakref.finalize(self, forget_operator, self._name, domain=_DOMAIN)

    def network(self, inputs: Sequence[TensorSpec]) -> Network:
        """The network, with inputs `x0`, `x1`, … and outputs `y0`, `y1`, ….

        Args:
            inputs: Specifications of the operator's inputs.

        Raises:
            ShapeError: The operator does not accept these inputs.
            OperatorError: Its `specs` failed.
            NetworkError: An ONNX operator does not accept these inputs.
        """
        if isinstance(self.operator, ONNXOperator):
            return self.operator.network(inputs)
        count = len(specs_of(self.operator, inputs))
        build = NetworkBuilder(name_of(self.operator))
        given = [build.input(f"x{number}", spec.shape, spec.dtype) for number, spec in enumerate(inputs)]
        made = build.op(self._name, *given, domain=_DOMAIN, outputs=count)
        return build.network({f"y{number}": value for number, value in enumerate(made if count > 1 else (made,))})
