"""A drawn case, and what plain ONNX Runtime and ONNX's reference compute of its file, each at the file's own opset."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from opset_cases import CRASHES, Draw, Drawn, declare, model_of, typed, versions
from opset_draws import DRAWS

__all__ = ["DEPRECATED", "OPERATORS", "Answer", "Case", "case_named", "evaluated", "opsets", "plainly"]

# It reads compressed images: that needs a package that deep5 does not install.
LEFT_OUT = {"ImageDecoder"}
# Deprecated versions, which ONNX's checker and ONNX Runtime refuse.
DEPRECATED = {("Scatter", 11), ("Upsample", 10)}
OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain} - LEFT_OUT)


def opsets(operator: str) -> list[int]:
    """The opsets from 7 on that changed an operator."""
    return [version for version in versions(operator) if (operator, version) not in DEPRECATED]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node of one operator in one opset, which its name determines."""

    operator: str
    opset: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.operator}-{self.opset}-{self.number}"

    @functools.cached_property
    def drawn(self) -> Drawn:
        return DRAWS[self.operator](Draw(self.operator, self.opset, self.number))

    @functools.cached_property
    def since(self) -> int:
        """The version that defined the operator."""
        return int(onnx.defs.get_schema(self.operator, self.opset, "").since_version)

    @functools.cached_property
    def _built(self) -> tuple[onnx.ModelProto, dict[str, Any]]:
        graphs = any(isinstance(each, onnx.GraphProto) for each in self.drawn.attributes.values())
        # There ONNX infers an empty shape of a backward slice up to INT_MAX, which ONNX Runtime requires of a branch.
        nested = self.number % 4 == 3 and not graphs and (self.operator, self.opset) != ("Slice", 10)
        return model_of(self.operator, self.opset, self.drawn, symbolic=self.number % 3 == 2, nested=nested)

    @property
    def model(self) -> onnx.ModelProto:
        """The file as it was drawn; its outputs have no declared types."""
        return self._built[0]

    @property
    def fed(self) -> dict[str, Any]:
        return self._built[1]

    def declared(self, outputs: Sequence[Any]) -> onnx.ModelProto:
        """The file with the types of these outputs declared."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        declare(model, outputs)
        return model

    def with_inputs(self, inputs: Sequence[Any]) -> Case:
        """The same node with other inputs."""
        other = Case(operator=self.operator, opset=self.opset, number=self.number)
        other.__dict__["drawn"] = replace(self.drawn, inputs=inputs)
        return other

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.drawn.attributes.get(name, default)

    def array(self, position: int) -> Any:
        """An input of the node, or None."""
        return self.drawn.inputs[position] if position < len(self.drawn.inputs) else None


def case_named(name: str) -> Case:
    operator, opset, number = name.rsplit("-", 2)
    return Case(operator=operator, opset=int(opset), number=int(number))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The outputs that an implementation computed; None and a reason where it did not."""

    outputs: Sequence[Any] | None
    reason: str = ""


@functools.cache
def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return options


def plainly(case: Case) -> Answer:
    """ONNX Runtime on the original file, without optimizations."""
    if (case.operator, case.since) in CRASHES:
        return Answer(outputs=None, reason=CRASHES[case.operator, case.since])
    try:
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), _options(), ["CPUExecutionProvider"])
        return Answer(outputs=list(session.run(None, dict(case.fed))))
    except Exception as error:  # what ONNX Runtime raises is its own
        return Answer(outputs=None, reason=str(error))


def evaluated(model: onnx.ModelProto, fed: Mapping[str, Any], *, types: bool = True) -> Answer:
    """ONNX's reference on a model; with `types`, in the element types that the schemas require."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = list(ReferenceEvaluator(model).run(None, dict(fed)))
            return Answer(outputs=typed(model, found) if types else found)
    except Exception as error:  # it raises any error of NumPy's
        return Answer(outputs=None, reason=f"{type(error).__name__}: {error}")
