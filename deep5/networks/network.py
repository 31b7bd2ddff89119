"""`Network`: an ONNX model held by onnx-ir, with the names that executors, gradients and recipes need."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from deep5.errors import NetworkError, OutputError
from deep5.tensors import TensorSpec

__all__ = ["Network"]

# Inputs of BatchNormalization that training changes but no gradient reaches: running mean and variance.
_STATISTICS = {"BatchNormalization": (3, 4)}
# Float inputs that say how an operator works and are not for training: a padding value, bounds, scales, a ratio,
# the weights of classes.
_SETTINGS = {
    "Pad": (2,),
    "Clip": (1, 2),
    "Resize": (1, 2),
    "Dropout": (1,),
    "SoftmaxCrossEntropyLoss": (2,),
    "NegativeLogLikelihoodLoss": (2,),
}
# Older versions of Softmax, Slice, Pad and others mean something else by the same name.
_OLDEST_OPSET = 13
_FLOATS = {"float16", "bfloat16", "float32", "float64"}


class Network:
    """A graph of ONNX operators with its initial weights.

    Initial values are read from the file, or drawn from their seed, only when asked for; live values belong to
    executors. A network is not changed after it was made.

    Args:
        model: The model; it is taken over, not copied.

    Raises:
        NetworkError: The model is not valid ONNX.

    Attributes:
        model: The `onnx_ir.Model`.
        inputs: Specifications of the inputs that a caller feeds, by name.
        outputs: Specifications of the outputs, by name.
        parameters: Specifications of the trainable initial values, in the order of first use.
        buffers: Specifications of values that training changes without a gradient (running statistics).
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        graph = model.graph
        self.inputs: dict[str, TensorSpec] = {
            _name(value): _spec(value) for value in graph.inputs if value.name not in graph.initializers
        }
        self.outputs: dict[str, TensorSpec] = {_name(value): _spec(value) for value in graph.outputs}
        self.parameters: dict[str, TensorSpec] = {}
        self.buffers: dict[str, TensorSpec] = {}
        _separate(model)
        for node in graph:
            for position, value in enumerate(node.inputs):
                if value is None or value.name not in graph.initializers:
                    continue
                role, spec = _role(node, position), _spec(value)
                if role == "statistics":
                    self.buffers[_name(value)] = spec
                elif role == "value" and spec.dtype in _FLOATS:
                    self.parameters[_name(value)] = spec

    @classmethod
    def from_onnx(cls, path_or_model: str | Path | onnx.ModelProto) -> Network:
        """Read a network.

        Args:
            path_or_model: A file in ONNX's format, or a model in memory (copied).

        Raises:
            NetworkError: No such file, or not a valid ONNX model.
        """
        if isinstance(path_or_model, onnx.ModelProto):
            what, proto = "the model", path_or_model
        elif not isinstance(path_or_model, (str, Path)):
            raise NetworkError(f"got a {type(path_or_model).__name__}; allowed: an ONNX file or an onnx.ModelProto")
        else:
            what = f"the file {path_or_model}"
            if not Path(path_or_model).is_file():
                raise NetworkError(f"{what} is not there; allowed: an ONNX file or an onnx.ModelProto")
            try:
                proto = onnx.load(str(path_or_model))
            except Exception as error:  # protobuf raises its own private classes
                raise NetworkError(f"{what} cannot be read as ONNX ({_first_line(error)})") from error
        try:
            onnx.checker.check_model(proto)
            proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
        except Exception as error:  # as above
            raise NetworkError(f"{what} is not valid ONNX: {_first_line(error)}") from error
        opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), _OLDEST_OPSET)
        if opset < _OLDEST_OPSET:
            raise NetworkError(
                f"{what} is written in opset {opset}; allowed: {_OLDEST_OPSET} and newer; remedy: "
                "onnx.version_converter.convert_version(model, 20)"
            )
        model = ir.from_proto(proto)
        # By default the pass leaves constants of fewer than sixteen elements where they are.
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        return cls(model)

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes in the order of execution."""
        return list(self.model.graph)

    @property
    def opset(self) -> int:
        """The version of ONNX's own operator set that the network is written in."""
        return self.model.graph.opset_imports.get("", _OLDEST_OPSET)

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Initial values that are neither parameters nor buffers (shapes, axes, indices), by name."""
        owned = self.parameters.keys() | self.buffers.keys()
        return {name: self.initial(name) for name in self.model.graph.initializers if name not in owned}

    def initial(self, name: str) -> np.ndarray:
        """The initial value of a parameter, buffer or constant; a fresh, writable array.

        Raises:
            NetworkError: Nothing has that name.
        """
        value = self.model.graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise NetworkError(f"no initial value {name!r}; allowed: {', '.join(self.model.graph.initializers)}")
        return np.array(value.const_value.numpy(), order="C")

    def with_values(self, values: Mapping[str, np.ndarray]) -> Network:
        """A copy of this network with other initial values.

        Args:
            values: New values by name, of the same shapes and dtypes; what is not named stays.

        Raises:
            NetworkError: An unknown name, or a value that does not fit.
        """
        model = self.model.clone()
        for name, given in values.items():
            value = model.graph.initializers.get(name)
            if value is None:
                raise NetworkError(f"no initial value {name!r}; allowed: {', '.join(model.graph.initializers)}")
            array = np.array(given, order="C")
            reason = _spec(value).mismatch(array.shape, str(array.dtype))
            if reason:
                raise NetworkError(f"the value for {name!r} does not fit: {reason}")
            value.const_value = ir.tensor(array, name=name)
        return Network(model)

    def with_outputs(self, names: Iterable[str]) -> Network:
        """A copy of this network that returns these values, in this order.

        Raises:
            NetworkError: No node computes such a value.
        """
        model = self.model.clone()
        values = {value.name: value for node in model.graph for value in node.outputs}
        chosen = []
        for name in names:
            if name not in values:
                raise NetworkError(f"no value {name!r} in the network; allowed: {', '.join(map(str, values))}")
            chosen.append(values[name])
        model.graph.outputs.clear()
        model.graph.outputs.extend(chosen)
        passes.RemoveUnusedNodesPass()(model)
        return Network(model)

    def to_onnx(self) -> onnx.ModelProto:
        """The network as an `onnx.ModelProto`, weights included."""
        return ir.to_proto(self.model)

    def save(self, path: str | Path) -> None:
        """Write the network as one ONNX file, atomically.

        Raises:
            OutputError: It cannot be written.
        """
        from deep5.files import write_atomically

        try:
            write_atomically(path, self.to_onnx().SerializeToString(deterministic=True))
        except OSError as error:
            raise OutputError(
                f"the network cannot be written to {path} ({error.strerror}); allowed: a writable file"
            ) from error

    def weights_hash(self) -> str:
        """SHA-256 over names, shapes, dtypes and bytes of all initial parameters and buffers."""
        digest = hashlib.sha256()
        for name, spec in {**self.parameters, **self.buffers}.items():
            digest.update(f"{name} {spec}\n".encode())
            digest.update(self.initial(name).tobytes())
        return digest.hexdigest()

    def structure_hash(self) -> str:
        """SHA-256 over opset, nodes, attributes, inputs and outputs, without the weights."""
        lines = [f"opset {domain} {version}" for domain, version in sorted(self.model.graph.opset_imports.items())]
        lines += [f"input {name} {spec}" for name, spec in self.inputs.items()]
        lines += [f"parameter {name} {spec}" for name, spec in {**self.parameters, **self.buffers}.items()]
        lines += [f"constant {name} {array.dtype} {array.tolist()}" for name, array in self.constants.items()]
        for node in self.nodes:
            attributes = sorted(f"{key}={_attribute(value)}" for key, value in node.attributes.items())
            sources = [value.name if value is not None else "" for value in node.inputs]
            lines.append(f"{node.domain}:{node.op_type} {sources} {[v.name for v in node.outputs]} {attributes}")
        lines += [f"output {name}" for name in self.outputs]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _role(node: ir.Node, position: int) -> str:
    """What an operator does with an initial value: `"statistics"`, `"setting"` or `"value"`."""
    if position in _STATISTICS.get(node.op_type, ()):
        return "statistics"
    return "setting" if position in _SETTINGS.get(node.op_type, ()) else "value"


def _separate(model: ir.Model) -> None:
    """Give each role an initial value of its own.

    Exporters store equal values once: the zeros of a bias and of a running mean, say, which part when training begins.
    """
    graph = model.graph
    for value in list(graph.initializers.values()):
        owner = None
        for node, position in [(use.node, use.idx) for use in value.uses()]:
            role = _role(node, position)
            # Running statistics belong to their node alone; other roles share.
            key = (role, node) if role == "statistics" else role
            owner = key if owner is None else owner
            if key != owner:
                copy = ir.Value(
                    name=f"{value.name}/{node.name or node.op_type}/{position}",
                    shape=value.shape,
                    type=value.type,
                    const_value=value.const_value,
                )
                while copy.name in graph.initializers:
                    copy.name = f"{copy.name}'"
                graph.initializers[str(copy.name)] = copy
                node.replace_input_with(position, copy)


def _attribute(attribute: ir.Attr) -> str:
    if isinstance(attribute.value, ir.TensorProtocol):
        array = attribute.value.numpy()
        return f"{array.dtype}{array.shape}{array.tobytes().hex()}"
    return str(attribute.value)


def _name(value: ir.Value) -> str:
    if not value.name:
        raise NetworkError("a value of the network has no name; remedy: name every input, output and initial value")
    return value.name


def _spec(value: ir.Value) -> TensorSpec:
    if value.dtype is None and value.const_value is not None:
        return TensorSpec(shape=tuple(value.const_value.shape.numpy()), dtype=str(value.const_value.dtype.numpy()))
    if value.shape is None or value.dtype is None:
        raise NetworkError(f"the value {value.name!r} has no shape or dtype; remedy: declare it, or infer shapes")
    # An unknown extent without a name gets one of its own: two of them need not be equal.
    shape = tuple(
        extent if isinstance(extent, int) else str(extent.value or f"{value.name}:{axis}")
        for axis, extent in enumerate(value.shape)
    )
    return TensorSpec(shape=shape, dtype=str(value.dtype.numpy()))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
