"""Bring a model into one opset: functions inlined, older operators converted, what ONNX's checker refuses rewritten."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.inliner

from deep5.networks.onnx.conversions import STEPS, without_deprecated
from deep5.networks.onnx.converting import WRITTEN, converted
from deep5.networks.onnx.protos import nested_nodes
from deep5.networks.onnx.versions import IR_VERSION, OPSET

__all__ = ["checkable", "upgraded"]

# The opsets in which GroupNormalization is deprecated; the newer ones define it again, with one scale per channel.
_GROUPS = range(18, 21)


def checkable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model that ONNX's checker does not refuse for what engines run: it has no deprecated operator and one opset.

    Args:
        proto: The model, which is not changed. Its functions may import other versions of ONNX's own operators than
            its graph does; then they are inlined, and all nodes converted.

    Returns:
        The same model if there is nothing to do.
    """
    opset = _opset(proto.opset_import)
    versions = [_opset(function.opset_import) for function in proto.functions]
    if any(version is not None and version != opset for version in versions):
        goal = max(OPSET, opset or 0, *(version or 0 for version in versions))
        return converted(_in_one_opset(proto, opset or goal), STEPS, opset or goal, goal)
    if opset is None or opset not in _GROUPS:
        return proto
    bodies = [proto.graph.node, *(function.node for function in proto.functions)]
    found = [any(_is_deprecated(node) for node in nested_nodes(body)) for body in bodies]
    if not any(found):
        return proto
    inlined = onnx.inliner.inline_local_functions(proto) if any(found[1:]) else proto
    return converted(
        inlined, {"GroupNormalization": {opset + 1: without_deprecated}}, opset, opset + 1, keep_opset=True
    )


def upgraded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model in a new enough opset and IR version, with its functions inlined; newer opsets remain.

    Args:
        proto: The model, without large initial values; it is not changed.

    Raises:
        NetworkError: A node that cannot be converted.
    """
    if proto.functions:
        # onnx-ir's inliner searches linearly for free names: 200 s for 40,000 nodes, here 0.05 s.
        made = onnx.inliner.inline_local_functions(proto)
    else:
        made = onnx.ModelProto()
        made.CopyFrom(proto)
    opset = _opset(made.opset_import)
    if opset is None:
        made.opset_import.add(domain="", version=OPSET)
    elif opset < OPSET:
        made = converted(made, STEPS, opset, OPSET)
    # The oldest IR version that supports the opset: some engines do not read the newest.
    made.ir_version = max(onnx.helper.find_min_ir_version_for(made.opset_import, ignore_unknown=True), IR_VERSION)
    return made


def _in_one_opset(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with inlined functions, whose nodes hold the version that they are written in as metadata."""
    marked = onnx.ModelProto()
    marked.CopyFrom(proto)
    for function in marked.functions:
        version = _opset(function.opset_import)
        for entry in function.opset_import:
            if not entry.domain and entry.version != opset:
                entry.version = opset
        for node in nested_nodes(function.node):
            if version is not None and version != opset:
                node.metadata_props.add(key=WRITTEN, value=str(version))
    if _opset(marked.opset_import) is None:
        marked.opset_import.add(domain="", version=opset)
    return onnx.inliner.inline_local_functions(marked)


def _opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int | None:
    return next((entry.version for entry in imports if not entry.domain), None)


def _is_deprecated(node: onnx.NodeProto) -> bool:
    return bool(node.op_type == "GroupNormalization" and not node.domain)
