"""Write a model in protobuf with other inputs and initial values than its graph has, without copying the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
import onnx_ir as ir

__all__ = ["light_proto"]


def light_proto(model: ir.Model, inputs: Sequence[ir.Value], initial: Iterable[ir.Value]) -> onnx.ModelProto:
    """The model in protobuf, with weights that are inputs or have other contents.

    Args:
        model: The model, without functions; it is not changed.
        inputs: The inputs instead of those of its graph.
        initial: The initial values instead of those of its graph. Values that nodes read under the same names.
    """
    graph = model.graph
    view = ir.GraphView(
        inputs,
        graph.outputs,
        nodes=graph,
        initializers=list(initial),
        doc_string=graph.doc_string,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in sorted(graph.opset_imports.items())]
    proto = onnx.ModelProto(ir_version=model.ir_version, opset_import=opsets)
    ir.serde.serialize_graph_into(proto.graph, view)  # type: ignore[arg-type]  # its protocol wants to set attributes
    return proto
