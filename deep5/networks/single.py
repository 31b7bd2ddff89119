"""Networks of one node, which stands for one given operator: what an engine that runs networks runs it as."""

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
    """An operator whose networks of one node can be had.

    What is behind a node is found by its name: as long as this object lives, the operator is registered under a name of
    its own in a domain that is nobody else's, and the node stands for this very object, whatever its attributes.

    Args:
        operator: Any but another framework's.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        if isinstance(operator, ONNXOperator):
            return
        # What messages call it may be any text, a node's operator is a name of C.
        self._name = f"{re.sub('[^A-Za-z0-9_]', '_', name_of(operator))}_{next(_NUMBERS)}"
        if self._name[0].isdigit():
            self._name = f"_{self._name}"

        class Held(Operator):
            """Its one object is there already, of another class."""

            def __new__(cls) -> Any:
                return operator

        register_operator(self._name, domain=_DOMAIN)(Held)
        weakref.finalize(self, forget_operator, self._name, domain=_DOMAIN)

    def network(self, inputs: Sequence[TensorSpec]) -> Network:
        """The network, with inputs `x0`, `x1`, … and outputs `y0`, `y1`, ….

        Args:
            inputs: Specifications of the operator's inputs.

        Raises:
            ShapeError: The operator does not take these.
            OperatorError: Its `specs` failed.
            NetworkError: The same, of an operator of ONNX's own.
        """
        if isinstance(self.operator, ONNXOperator):
            return self.operator.network(inputs)
        count = len(specs_of(self.operator, inputs))
        build = NetworkBuilder(name_of(self.operator))
        given = [build.input(f"x{number}", spec.shape, spec.dtype) for number, spec in enumerate(inputs)]
        made = build.op(self._name, *given, domain=_DOMAIN, outputs=count)
        return build.network({f"y{number}": value for number, value in enumerate(made if count > 1 else (made,))})
