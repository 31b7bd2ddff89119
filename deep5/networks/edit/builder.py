"""`NetworkBuilder`: build a network in Python from operators, and parameters with seeded initial values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from deep5.core.arguments import is_whole
from deep5.core.errors import NetworkError, brief
from deep5.core.seeds import generator
from deep5.networks.constants import FLOATS
from deep5.networks.custom import operator_of, output_count
from deep5.networks.diagnostics.refusals import unknown_operator, unregistered
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import stored_attribute
from deep5.networks.onnx.axes import check_axes
from deep5.networks.onnx.element_types import check_element_types
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.onnx.versions import IR_VERSION, OPSET
from deep5.operators.registry import registered_operator

__all__ = ["NetworkBuilder", "glorot_uniform", "he_normal", "ones", "zeros"]

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive


def glorot_uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform within ±sqrt(6 / (fan_in + fan_out)); for tanh (Glorot and Bengio, AISTATS 2010, equation 16).

    Args:
        rng: The stream to draw from.
        shape: (out, in, *receptive field). The result is float64.

    >>> import deep5 as d5
    >>> drawn = d5.networks.glorot_uniform(d5.generator(0, "weights"), (2, 4))
    >>> drawn.shape, bool(abs(drawn).max() <= (6 / (4 + 2)) ** 0.5)
    ((2, 4), True)
    """
    fan_in, fan_out = _fans(shape)
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    return rng.uniform(-limit, limit, shape)


def he_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal with variance 2 / fan_in; for ReLU (He et al., ICCV 2015, equation 10).

    Args:
        rng: The stream to draw from.
        shape: (out, in, *receptive field). The result is float64.

    >>> import deep5 as d5
    >>> drawn = d5.networks.he_normal(d5.generator(0, "weights"), (64, 32, 3, 3))
    >>> drawn.shape, round(float(drawn.std()), 3), round((2 / (32 * 3 * 3)) ** 0.5, 3)
    ((64, 32, 3, 3), 0.083, 0.083)
    """
    drawn = rng.standard_normal(shape)
    drawn *= math.sqrt(2.0 / _fans(shape)[0])  # in place: a copy of the largest parameter would raise the memory peak
    return drawn


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All zero.

    Args:
        rng: Not used.
        shape: Any shape. The result is float64.

    >>> import deep5 as d5
    >>> build = d5.NetworkBuilder("line")
    >>> x, weight = build.input("x", ("N", 3)), build.parameter("weight", (2, 3))
    >>> bias = build.parameter("bias", (2,), d5.networks.zeros)
    >>> network = build.network({"y": build.op("Gemm", x, weight, bias, transB=1)})
    >>> network.initial("bias")
    array([0., 0.], dtype=float32)
    """
    return np.zeros(shape)


def ones(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All one.

    Args:
        rng: Not used.
        shape: Any shape. The result is float64.

    >>> import deep5 as d5
    >>> build = d5.NetworkBuilder("scaled")
    >>> scale = build.parameter("scale", (3,), d5.networks.ones)
    >>> build.network({"y": build.op("Mul", build.input("x", ("N", 3)), scale)}).initial("scale")
    array([1., 1., 1.], dtype=float32)
    """
    return np.ones(shape)


class NetworkBuilder:
    """Builds a `Network` operator by operator.

    Args:
        name: Name of the graph.
        dtype: Element type of inputs declared without one, and of all parameters; parameters must be floating-point.
        seed: Initial values depend only on (seed, name of the parameter). They are drawn in float64, then rounded, so
            that the float32 and the float64 network start at the same point.

    >>> build = NetworkBuilder("line", dtype="float64", seed=0)
    >>> x = build.input("x", ("N", 3))
    >>> y = build.op("Gemm", x, build.parameter("w", (1, 3)), build.parameter("b", (1,), zeros), transB=1)
    >>> network = build.network({"y": y})
    >>> network.parameter_specs["w"].shape, network.outputs["y"].shape
    ((1, 3), ('N', 1))
    """

    def __init__(self, name: str, *, dtype: str = "float32", seed: int = 0) -> None:
        if not is_whole(seed) or seed < 0:
            raise NetworkError(f"the network {name!r}: got the seed {brief(seed)}; allowed: an integer of at least 0")
        self.dtype = _dtype(dtype)
        self._seed = int(seed)
        self._graph = ir.Graph([], [], nodes=[], name=name, opset_imports={"": OPSET})
        self._counts: dict[str, int] = {}
        # The output counts of registered operators, and the nodes that were created with such a count.
        self._output_counts: dict[tuple[bytes | bool, ...], int] = {}
        self._counted: list[ir.Node] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: str | None = None) -> ir.Value:
        """Declare an input.

        Args:
            name: An unused name.
            shape: Dimensions; a string is a symbolic dimension.
            dtype: Element type; None: that of the builder.

        Raises:
            NetworkError: The name is taken, or a dimension or the element type is invalid.
        """
        if name in self._graph.initializers or any(value.name == name for value in self._graph.inputs):
            raise NetworkError(f"the name {name!r} is taken; remedy: name every input once")
        extents = _extents(f"input {name!r}", shape, symbolic=True)
        kind = ir.DataType.from_numpy(_dtype(dtype) if dtype else self.dtype)
        value = ir.Value(name=name, shape=ir.Shape(extents), type=ir.TensorType(kind))
        self._graph.inputs.append(value)
        return value

    def parameter(self, name: str, shape: Sequence[int], initializer: Initializer = glorot_uniform) -> ir.Value:
        """Declare a parameter (or buffer) with its initial distribution, drawn on first use.

        Args:
            name: An unused name; it determines the values that are drawn.
            shape: Fixed dimensions, at least 0.
            initializer: A function of a stream and a shape, such as `glorot_uniform`, `he_normal`, `zeros` or
                `ones`.

        Raises:
            NetworkError: The name is taken, the shape is not fixed, or the distribution requires a higher rank.
        """
        extents = tuple(int(extent) for extent in _extents(f"parameter {name!r}", shape, symbolic=False))
        dtype, seed = self.dtype, self._seed
        if ir.DataType.from_numpy(dtype) not in FLOATS:
            raise NetworkError(
                f"parameter {name!r}: got the element type {dtype}; allowed: bfloat16, float16, float32, float64; "
                "remedy for integers: constant"
            )
        if initializer in (glorot_uniform, he_normal) and len(extents) < 2:
            raise NetworkError(
                f"parameter {name!r}: got the shape {list(extents)} for {initializer.__name__}; allowed: "
                "(out, in, *receptive field); remedy: another initializer, such as deep5.networks.zeros"
            )

        def draw() -> ir.TensorProtocol:
            return ir.Tensor(
                initializer(generator(seed, "weights", name), extents).astype(dtype, copy=False), name=name
            )

        return self._initial(name, ir.LazyTensor(draw, ir.DataType.from_numpy(dtype), ir.Shape(extents), name=name))

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """Declare a constant, such as the shape of a Reshape.

        Args:
            name: An unused name.
            array: Its value.

        Raises:
            NetworkError: The name is taken, or the array is not numeric.
        """
        if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.kind in "OSUMm":
            raise NetworkError(f"constant {name!r}: got {array!r}; allowed: a NumPy array of numbers")
        return self._initial(name, ir.Tensor(array, name=name))

    def scalar(self, number: float, dtype: str | None = None) -> ir.Value:
        """A number that is not a parameter, such as a scale.

        Args:
            number: Its value.
            dtype: Element type; None: that of the builder.

        Raises:
            NetworkError: The argument is not a number.
        """
        if not isinstance(number, (int, float, np.bool_, np.number)):
            raise NetworkError(f"scalar: got {number!r:.60}; allowed: a number, such as 0.5")
        tensor = ir.tensor(np.array(number, dtype=_dtype(dtype) if dtype else self.dtype))
        value: ir.Value = self.op("Constant", value=tensor)
        return value

    def _initial(self, name: str, tensor: Any) -> ir.Value:
        if name in self._graph.initializers or any(value.name == name for value in self._graph.inputs):
            raise NetworkError(f"the name {name!r} is taken; remedy: name every parameter once")
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._graph.initializers[name] = value
        return value

    def op(
        self, op_type: str, *inputs: ir.Value | None, outputs: int | None = None, domain: str = "", **attributes: Any
    ) -> Any:
        """Append a node; returns its output, or a tuple of outputs.

        Args:
            op_type: An ONNX operator, or a registered one (`deep5.register_operator`).
            inputs: Values from `input`, `parameter` and `op`; None for an omitted input.
            outputs: The number of outputs; by default as many as the `specs` of a registered operator returns, and one
                for an ONNX operator. A smaller number selects the first outputs.
            domain: Domain of a registered operator.
            attributes: Attributes of the node; for a registered operator, the arguments of its class.

        Raises:
            NetworkError: An unknown operator, an input that is not a value, or an attribute that a file cannot store.
                When the output count of a registered operator is requested, also the errors of `network` for all
                earlier nodes.
            ShapeError: A registered operator whose output count is requested does not accept such inputs.
            OperatorError: The operator cannot be created from these attributes, or its `specs` failed.
        """
        if domain:
            if registered_operator(domain, op_type) is None:
                raise NetworkError(unregistered(domain, op_type))
            self._graph.opset_imports[domain] = 1
        elif not isinstance(op_type, str) or not onnx.defs.has(op_type, OPSET, ""):
            raise NetworkError(unknown_operator(str(op_type), OPSET))
        for value in inputs:
            if value is not None and not isinstance(value, ir.Value):
                raise NetworkError(
                    f"{op_type} got {value!r} as an input; allowed: what input, parameter and op return, or None"
                    + (
                        "; remedy: one of the outputs, or outputs=1 where they come from"
                        if type(value) is tuple
                        else ""
                    )
                )
        number = self._counts[op_type] = self._counts.get(op_type, 0) + 1
        attributes = {name: stored_attribute(op_type, name, value) for name, value in attributes.items()}
        requested = bool(domain) and outputs is None
        if outputs is None:
            outputs = self._output_count(op_type, inputs, domain, attributes) if domain else 1
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs, name=f"{op_type}_{number}")
        for index, value in enumerate(node.outputs):
            value.name = f"{op_type}_{number}" + (f"_{index}" if index else "") + "_output"
        self._graph.append(node)
        if requested:
            self._counted.append(node)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def _output_count(
        self, op_type: str, inputs: Sequence[ir.Value | None], domain: str, attributes: Mapping[str, Any]
    ) -> int:
        """The output count of a registered operator for these inputs; one if their shapes cannot be known."""
        alone = ir.node(op_type, [], attributes, domain=domain)
        operator = operator_of(alone)
        assert operator is not None  # noqa: S101 - it is registered
        unknown = {id(value): value for value in inputs if value is not None and value.shape is None}
        if not unknown:
            return output_count(operator, inputs) or 1
        # A node's outputs have no shape before inference, which for every new node would take quadratic time in all:
        # so a count of an earlier node is reused, and `network` checks it.
        key = (ir.to_proto(alone).SerializeToString(deterministic=True), *(value is None for value in inputs))
        if key not in self._output_counts:
            if all(value.graph is self._graph for value in unknown.values()):
                self._infer_shapes(list(unknown.values()))
            count = output_count(operator, inputs)
            if count is None:
                return 1
            self._output_counts[key] = count
        return self._output_counts[key]

    def _infer_shapes(self, ends: Sequence[ir.Value]) -> None:
        """Infer the shapes of the graph built so far, as if it ended with these values."""
        before = list(self._graph.outputs)
        self._graph.outputs.clear()
        self._graph.outputs.extend(ends)
        try:
            infer_shapes(ir.Model(self._graph, ir_version=IR_VERSION), f"network {self._graph.name!r}")
        finally:
            self._graph.outputs.clear()
            self._graph.outputs.extend(before)

    def _check_output_counts(self) -> None:
        for node in self._counted:
            operator = operator_of(node)
            count = None if operator is None else output_count(operator, node.inputs)
            if count is not None and count != len(node.outputs):
                raise NetworkError(
                    f"node {node.name!r} ({node.domain}.{node.op_type}) was given {len(node.outputs)} outputs, and its "
                    f"specs says {count} of its inputs; remedy: outputs={count}, or fewer, where it is built"
                )

    def network(self, outputs: Mapping[str, ir.Value]) -> Network:
        """Finish the network with these values as its outputs, under these names.

        Args:
            outputs: Values from `op`, by the name of the output.

        Raises:
            NetworkError: The graph is not valid ONNX, has no outputs or invalid ones, mixes element types, or is
                already finished.
        """
        if self._graph.outputs:
            raise NetworkError(
                f"the network {self._graph.name!r} is finished; remedy: another NetworkBuilder, or network.with_outputs"
            )
        if not isinstance(outputs, Mapping):
            raise NetworkError(f"got {type(outputs).__name__} as outputs; allowed: a dict such as {{'loss': value}}")
        if not outputs:
            raise NetworkError(f"the network {self._graph.name!r} has no outputs; allowed: at least one")
        for name, value in outputs.items():
            if not isinstance(name, str) or not name or not isinstance(value, ir.Value):
                raise NetworkError(
                    f"got {value!r} as the output {name!r}; allowed: a name, and what op returns (of several outputs, "
                    "one)"
                )
        taken = {*self._graph.initializers, *(str(value.name) for value in self._graph.inputs)}
        if len({id(value) for value in outputs.values()}) < len(outputs) or taken & outputs.keys():
            raise NetworkError(
                f"the outputs {list(outputs)} clash; allowed: a computed value once, under a name that no input or "
                "parameter has"
            )
        for name, value in outputs.items():
            value.name = name
            self._graph.outputs.append(value)
        model = ir.Model(self._graph, ir_version=IR_VERSION, producer_name="deep5")
        infer_shapes(model, f"network {self._graph.name!r}")
        self._check_output_counts()
        check_element_types(model, f"network {self._graph.name!r}")
        check_axes(model, f"network {self._graph.name!r}")
        return Network(model)


def _dtype(given: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(given)
        ir.DataType.from_numpy(dtype)
    except TypeError as error:
        raise NetworkError(
            f"got {given!r} as an element type; allowed: NumPy's name of a number, such as 'float32' or 'int64'"
        ) from error
    return dtype


def _extents(what: str, shape: Any, *, symbolic: bool) -> tuple[int | str, ...]:
    """The shape; each dimension is an integer of at least 0 or, if allowed, a name."""
    extents = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else None
    if extents is None or not all(
        (isinstance(extent, (int, np.integer)) and extent >= 0) or (symbolic and isinstance(extent, str) and extent)
        for extent in extents
    ):
        raise NetworkError(
            f"{what}: got the shape {shape!r}; allowed: a tuple of integers of at least 0"
            + (" and of names, such as 'N'" if symbolic else "; the dimensions of a parameter are fixed")
        )
    return tuple(extent if isinstance(extent, str) else int(extent) for extent in extents)
