"""Sessions of ONNX Runtime, created with the same options, and whether it can run a node."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from deep5.core.framework import Support
from deep5.core.tensors import Device, is_bfloat16, numpy_dtype
from deep5.frameworks.onnxruntime.custom import register_shim
from deep5.frameworks.onnxruntime.guards import guard, wrong
from deep5.frameworks.onnxruntime.numerics import EXACT, Numerics
from deep5.frameworks.onnxruntime.substitutes import in_float32, substitute
from deep5.networks.compiled import refusal
from deep5.networks.custom import is_custom
from deep5.networks.draft import Change, changed
from deep5.networks.engine import answered, node_model
from deep5.networks.labels import LOSSES
from deep5.networks.network import Network
from deep5.networks.nodes import nested, subgraphs
from deep5.networks.transforms.mixed_precision import AS_FLOAT32, PRODUCTS

__all__ = [
    "Profile",
    "copied",
    "explanation",
    "make_session",
    "newest_opset",
    "on_memory",
    "providers",
    "supports",
    "widened",
    "with_remedy",
]

# The newest opset that ONNX Runtime (1.31) reads as released.
_NEWEST_OPSET = 26
# Operators that ONNX Runtime does not have in later opsets, which added dtypes.
_OLD = {"RoiAlign": 21}
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Dtypes that some kernels do not have although they have float32.
_OTHER_FLOATS = {
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}
_ANSWERS: dict[Hashable, Support] = {}
_WIDE_ANSWERS: dict[Hashable, Support] = {}


class Profile(NamedTuple):
    """The files of a session's profile.

    Attributes:
        model: The optimized model; the profile is next to it.
        run: The network of the session.
    """

    model: Path
    run: Network

    @property
    def weights(self) -> Path:
        """The weights of the optimized model."""
        return self.model.with_suffix(".weights")


def providers(device: Device, *, tf32: bool = False) -> list[Any]:
    """The execution providers for a device; empty if it is not supported."""
    if device.kind == "cpu":
        return [_CPU]
    if _CUDA in onnxruntime.get_available_providers():
        return [(_CUDA, {"device_id": str(device.index), "use_tf32": str(int(tf32))})]
    return []


def make_session(
    model: bytes,
    threads: int,
    device: Device,
    fixed: Mapping[str, onnxruntime.OrtValue] | None = None,
    numerics: Numerics = EXACT,
    *,
    custom: bool = False,
    left_out: Sequence[str] = (),
    profile: Profile | None = None,
) -> onnxruntime.InferenceSession:
    """A session on only this device.

    Args:
        model: The serialized model.
        threads: The number of threads per operator.
        device: A device with `providers`.
        fixed: Values of initializers that the model leaves to external data; they must outlive the session.
        numerics: Numerical settings of a GPU; the host is always bit-reproducible.
        custom: Whether the model has nodes of compiled operators.
        left_out: The names of optimizations that the session does without.
        profile: Where to write kernel times and the optimized model; None: nowhere.
    """
    options = onnxruntime.SessionOptions()
    if custom:
        register_shim(options)
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads slow everything else in this process by a factor of two to three.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.use_deterministic_compute = numerics.deterministic or device.kind == "cpu"
    # Errors are raised; the log would repeat them.
    options.log_severity_level = 4
    if device.kind != "cpu":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if fixed:
        options.add_external_initializers(list(fixed), list(fixed.values()))
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile.model.with_suffix(""))
        options.optimized_model_filepath = str(profile.model)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", profile.weights.name
        )
    session = onnxruntime.InferenceSession(
        model,
        options,
        providers=providers(device, tf32=numerics.tf32),
        enable_fallback=False,
        disabled_optimizers=list(left_out),
    )
    if profile is not None:
        profile.weights.unlink(missing_ok=True)  # a second copy, which is not needed
    return session


def on_memory(array: np.ndarray) -> onnxruntime.OrtValue:
    """A value on the memory of a C-contiguous array; it keeps the array alive."""
    if is_bfloat16(array):  # not known to ONNX Runtime as a NumPy dtype
        made = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
        return made(array.view(np.uint16), onnx.TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def copied(value: onnxruntime.OrtValue) -> np.ndarray:
    """A copy of a value on the host."""
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        found: np.ndarray = value.numpy()
        return found.copy()
    shape = value.shape()
    raw = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape))
    return np.frombuffer(bytearray(raw), numpy_dtype("bfloat16")).reshape(shape)


def explanation(error: Exception) -> str:
    """The message of an ONNX Runtime error without codes, source locations and signatures."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).partition("\n")[0])
    running = re.search(r"while running (\w+) node", text)
    tail = re.split(r"Status Message: |\.(?:cc|h):\d+ .*?\) |\[with [^]]*\] |was false\. ", text)[-1].strip()
    return f"{running[1]}: {tail}" if running else tail or type(error).__name__


def with_remedy(reason: str) -> str:
    """ONNX Runtime's reason for refusing a model, with what is allowed."""
    return (
        f"{reason.rstrip('.')}; allowed: inputs and attributes that ONNX Runtime reads; remedy: other ones, or another "
        "back-end"
    )


def supports(node: ir.Node) -> Support:
    """Whether ONNX Runtime can run a node, tested with a session of only the node, once per kind of node.

    Its documentation does not list attributes, and its kernel table lists neither these nor the functions it expands.
    """
    if is_custom(node):
        reason = refusal(node, "ONNX Runtime")
        return Support(reason is None, reason or "")
    if substitute(node) is not None:
        return Support(True)
    if (reason := wrong(node)) is not None:
        return Support(False, reason)
    for inner in nested(node):
        if (reason := _refused_inside(inner)) is not None:
            return Support(False, f"{inner.name or inner.op_type} ({inner.op_type}) in it: {reason}")
    answer = answered(_ANSWERS, node, _tried)
    return answer if answer or not _short(node) or not answered(_WIDE_ANSWERS, node, _tried_wide) else Support(True)


def widened(network: Network) -> Network:
    """The network with bfloat16 nodes without a kernel computed in float32, each rounded once.

    Args:
        network: A network whose nodes are supported; it is not changed.

    Returns:
        A network with the same inputs and outputs; the network itself if nothing changes.
    """
    model = changed(network.model, _widening)
    return network if model is network.model else Network(model)


def _widening(node: ir.Node) -> Change | None:
    if not _short(node) or is_custom(node) or subgraphs(node) or substitute(node):
        return None
    return None if answered(_ANSWERS, node, _tried) else in_float32


def newest_opset(nodes: Iterable[ir.Node]) -> int:
    """The newest opset that ONNX Runtime reads for a network of these nodes."""
    return min((_OLD.get(node.op_type, _NEWEST_OPSET) for node in nodes if not node.domain), default=_NEWEST_OPSET)


def _short(node: ir.Node) -> bool:
    """Whether a node reads bfloat16 and is not a product, whose computation would change its dtype."""
    short = any(value is not None and value.dtype == ir.DataType.BFLOAT16 for value in node.inputs)
    return short and node.op_type not in PRODUCTS


def _refused_inside(node: ir.Node) -> str | None:
    """Why a node does not run in a subgraph; None if it does, or if only its graph can be tested."""
    if is_custom(node):
        return "a registered operator, which is compiled only for nodes of the network itself"
    if subgraphs(node):
        return None
    if any(value is not None and value.type is None for value in node.inputs):
        return wrong(node)
    answer = supports(node)
    return None if answer else answer.reason


def _tried_wide(node: ir.Node) -> Support:
    model = node_model(node, newest_opset([node]))
    if model is None or subgraphs(node):
        return Support(False)
    proto = onnx.ModelProto.FromString(model)
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return Support(_refusal(proto.SerializeToString()) is None)


def _tried(node: ir.Node) -> Support:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    model = node_model(node, newest_opset([node, *nested(node)]))
    if model is None:
        return Support(False, f"an input of {kind} has no known element type; remedy: infer shapes first")
    if subgraphs(node):  # as the nodes in the subgraphs are run
        suited = changed(ir.from_proto(onnx.ModelProto.FromString(model)), _widening)
        suited = changed(suited, lambda own: guard(own, is_open=own.op_type in LOSSES and not own.domain))
        model = ir.to_proto(suited).SerializeToString()
    reason = _refusal(model)
    if reason is None:
        return Support(True)
    proto = onnx.ModelProto.FromString(model)
    types = [value.type.tensor_type for value in (*proto.graph.input, *proto.graph.output)]
    found = sorted({_OTHER_FLOATS[own.elem_type] for own in types if own.elem_type in _OTHER_FLOATS})
    for own in types:
        if own.elem_type in _OTHER_FLOATS:
            own.elem_type = onnx.TensorProto.FLOAT
    if found and _refusal(proto.SerializeToString()) is None:
        return Support(
            False,
            f"ONNX Runtime has no kernel for {kind} in {', '.join(found)}; allowed: float32; remedy: {AS_FLOAT32}",
        )
    return Support(False, _reported(node, kind, reason))


def _reported(node: ir.Node, kind: str, reason: str) -> str:
    """Why a node does not run, with a remedy if ONNX Runtime has no operator or kernel for it."""
    if "is not a registered function/op" in reason:
        return (
            f"ONNX Runtime has no operator {kind}; allowed: ONNX's, its own, and registered ones; remedy: "
            f"d5.register_operator({node.op_type!r}, domain={node.domain!r})"
        )
    if "Could not find an implementation" in reason:
        kinds = (value.dtype for value in node.inputs if value is not None)
        types = dict.fromkeys(each.name for each in kinds if each is not None)
        return (
            f"ONNX Runtime has no kernel for {kind}{' of ' if types else ''}{', '.join(types)}; allowed: element types "
            "and operators that it has on this processor; remedy: a Cast before it, or another back-end"
        )
    if counts := re.search(r"has (input|output) size (-?\d+) not in range \[min=(\d+), max=(\d+)\]", reason):
        return f"got {counts[2]} {counts[1]}s; allowed: {counts[3]} to {counts[4]}; remedy: correct the node"
    return with_remedy(reason)


def _refusal(model: bytes) -> str | None:
    try:
        make_session(model, 1, Device())
    except Exception as error:  # ONNX Runtime raises private classes
        return explanation(error)
    return None
