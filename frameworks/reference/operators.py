"""The table of operators: how the reference runs each one, and what it cannot run, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from deep5.backend import Support
from deep5.frameworks.reference.kernels import (
    activation,
    convolution,
    elementwise,
    index,
    loss,
    normalization,
    pooling,
    reduction,
    shape,
)
from deep5.frameworks.reference.kernels.memory import Array, Scratch
from deep5.networks.gradients.window import Window, attribute

__all__ = ["OPERATORS", "Call", "Operator", "Site", "constant_value", "supports"]

_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE}
_OTHER_FLOATS = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A node where it is about to be compiled.

    Attributes:
        node: The node.
        constants: Values that never change, known while compiling.
        scratch: The buffer that convolutions of this network share.
        outputs: How many outputs somebody reads.
    """

    node: ir.Node
    constants: Mapping[ir.Value, Array]
    scratch: Scratch
    outputs: int

    def given(self) -> tuple[int, ...]:
        """Positions of the inputs that the node has."""
        return tuple(i for i, value in enumerate(self.node.inputs) if value is not None)

    def constant(self, position: int) -> Array | None:
        """An input's value where it never changes, else None."""
        value = self.node.inputs[position] if position < len(self.node.inputs) else None
        return None if value is None else self.constants.get(value)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        return attribute(self.node, name, default)

    def rank(self, position: int = 0) -> int:
        """Number of axes of an input."""
        value = self.node.inputs[position]
        return 0 if value is None or value.shape is None else len(value.shape)


class Call(NamedTuple):
    """What the generated code calls for a node, and which of the node's inputs it passes."""

    function: Callable[..., Any]
    inputs: tuple[int, ...]


class Operator(NamedTuple):
    """How to run an operator.

    Attributes:
        make: Turns a node into a call.
        view: The result may share memory with the first input.
        in_place: The call takes `out=`, which may be one of its inputs.
        refusal: Why a node cannot run, or None.
    """

    make: Callable[[Site], Call]
    view: bool = False
    in_place: bool = False
    refusal: Callable[[ir.Node], str | None] = lambda node: None


def _plain(function: Callable[..., Any], *, view: bool = False, in_place: bool = False) -> Operator:
    return Operator(lambda site: Call(function, site.given()), view=view, in_place=in_place)


def _conv(site: Site) -> Call:
    window = Window.of(site.node, site.rank(1) - 2)
    group = site.attribute("group", 1)
    return Call(partial(convolution.convolution, window=window, group=group, scratch=site.scratch), site.given())


def _conv_transpose(site: Site) -> Call:
    rank = site.rank(1) - 2
    function = partial(
        convolution.transposed_convolution,
        window=Window.of(site.node, rank),
        output_padding=tuple(site.attribute("output_padding", (0,) * rank)),
        group=site.attribute("group", 1),
        scratch=site.scratch,
    )
    return Call(function, site.given())


def _conv_transpose_refusal(node: ir.Node) -> str | None:
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return f"got auto_pad={attribute(node, 'auto_pad')!r}; allowed: NOTSET, VALID"
    return "got output_shape; allowed: pads and output_padding" if "output_shape" in node.attributes else None


def _average_pool(site: Site) -> Call:
    window = Window.of(site.node, len(site.attribute("kernel_shape")))
    counted = bool(site.attribute("count_include_pad", 0))
    return Call(partial(pooling.average_pool, window=window, count_include_pad=counted), (0,))


def _max_pool(site: Site) -> Call:
    window = Window.of(site.node, len(site.attribute("kernel_shape")))
    return Call(partial(pooling.max_pool if site.outputs < 2 else pooling.max_pool_with_indices, window=window), (0,))


def _max_pool_refusal(node: ir.Node) -> str | None:
    if attribute(node, "storage_order", 0):
        return f"got storage_order={attribute(node, 'storage_order')}; allowed: 0"
    return None if node.outputs[0].dtype in (None, *_FLOATS) else f"got {node.outputs[0].dtype}; allowed: floats"


def _gemm(site: Site) -> Call:
    function = partial(
        elementwise.gemm,
        alpha=site.attribute("alpha", 1.0),
        beta=site.attribute("beta", 1.0),
        trans_a=bool(site.attribute("transA", 0)),
        trans_b=bool(site.attribute("transB", 0)),
    )
    return Call(function, site.given())


def _divide(site: Site) -> Call:
    value = site.node.outputs[0].dtype or (site.node.inputs[0].dtype if site.node.inputs[0] else None)
    return Call(elementwise.divide_integers if value in (ir.DataType.INT32, ir.DataType.INT64) else np.divide, (0, 1))


def _set(function: Callable[..., Any], **defaults: Any) -> Operator:
    """An operator whose attributes are the function's keywords, with ONNX's defaults."""

    def make(site: Site) -> Call:
        settings = {name: site.attribute(name, default) for name, default in defaults.items()}
        return Call(partial(function, **settings), site.given())

    return Operator(make)


def _combination(ufunc: np.ufunc) -> Operator:
    return _plain(partial(elementwise.combine, ufunc=ufunc))


def _reduction(function: Callable[..., Array], **settings: Any) -> Operator:
    def make(site: Site) -> Call:
        bound = partial(
            function,
            **settings,
            keepdims=bool(site.attribute("keepdims", 1)),
            noop_with_empty_axes=bool(site.attribute("noop_with_empty_axes", 0)),
        )
        return _with_constants(site, bound, "axes")

    return Operator(make, refusal=_axes_refusal)


def _axes_refusal(node: ir.Node) -> str | None:
    return (
        "got axes as an attribute, of an older opset; allowed: axes as an input" if "axes" in node.attributes else None
    )


def _with_constants(site: Site, function: Callable[..., Any], *names: str) -> Call:
    """Bind inputs behind the first that never change, as tuples of Python integers; pass the others."""
    bound: dict[str, Any] = {}
    for position, name in enumerate(names, start=1):
        known = site.constant(position)
        if known is None:
            if position < len(site.node.inputs) and site.node.inputs[position] is not None:
                return Call(_by_position(function, site.given()), site.given())
            continue
        bound[name] = tuple(int(number) for number in known.reshape(-1))
    return Call(partial(function, **bound), (0,))


def _by_position(function: Callable[..., Any], given: tuple[int, ...]) -> Callable[..., Any]:
    """Fill the optional inputs that a node leaves out with None."""
    if given == tuple(range(len(given))):
        return function

    def call(*values: Array) -> Any:
        found = dict(zip(given, values, strict=True))
        return function(*(found.get(position) for position in range(given[-1] + 1)))

    return call


def _reshape(site: Site) -> Call:
    allow_zero = bool(site.attribute("allowzero", 0))
    return _with_constants(site, partial(shape.reshape, allow_zero=allow_zero), "shape")


def _transpose(site: Site) -> Call:
    perm = site.attribute("perm")
    if perm is not None and tuple(perm) == (*range(1, len(perm)), 0):
        return Call(shape.first_to_last, (0,))
    return Call(partial(np.transpose, axes=None if perm is None else tuple(perm)), (0,))


def _slice(site: Site) -> Call:
    return _with_constants(site, shape.slices, "starts", "ends", "axes", "steps")


def _pad(site: Site) -> Call:
    function = partial(shape.pad, mode=site.attribute("mode", "constant"))
    return Call(_by_position(function, site.given()), site.given())


def _pad_refusal(node: ir.Node) -> str | None:
    mode, allowed = attribute(node, "mode", "constant"), ("constant", "edge", "reflect", "wrap")
    return None if mode in allowed else f"got mode={mode!r}; allowed: {', '.join(allowed)}"


def _concat(site: Site) -> Call:
    axis = site.attribute("axis")
    return Call(lambda *values: np.concatenate(values, axis=axis), site.given())


def _shape(site: Site) -> Call:
    part = slice(site.attribute("start", 0), site.attribute("end"))
    return Call(lambda x: np.array(np.shape(x)[part], dtype=np.int64), (0,))


def _constant_of_shape(site: Site) -> Call:
    value = site.attribute("value")
    fill = np.zeros(1, dtype=np.float32) if value is None else value.numpy()
    return Call(lambda goal: np.full(tuple(map(int, goal)), fill.reshape(()), dtype=fill.dtype), (0,))


def _cast(site: Site) -> Call:
    dtype = ir.DataType(site.attribute("to")).numpy()
    return Call(lambda x: np.asarray(x).astype(dtype, copy=False), (0,))


def _clip(site: Site) -> Call:
    return Call(_by_position(activation.clip, site.given()), site.given())


def _modulo(site: Site) -> Call:
    return Call(partial(elementwise.modulo, truncated=bool(site.attribute("fmod", 0))), (0, 1))


def _split(site: Site) -> Call:
    function = partial(shape.split, axis=site.attribute("axis", 0), parts=len(site.node.outputs))
    call = _with_constants(site, function, "sizes")
    return Call(_first(call.function, site.outputs), call.inputs)


def _trilu(site: Site) -> Call:
    return Call(partial(shape.trilu, upper=bool(site.attribute("upper", 1))), site.given())


def _resize(site: Site) -> Call:
    return Call(shape.repeat_elements, (0, 2))


def _resize_refusal(node: ir.Node) -> str | None:
    """Why a Resize is no repetition of elements."""
    asked = {
        "mode": attribute(node, "mode", "nearest"),
        "coordinate_transformation_mode": attribute(node, "coordinate_transformation_mode", "half_pixel"),
        "nearest_mode": attribute(node, "nearest_mode", "round_prefer_floor"),
    }
    allowed = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if asked != allowed or "axes" in node.attributes or len(node.inputs) != 3 or node.inputs[2] is None:
        got = ", ".join(f"{name}={value!r}" for name, value in asked.items())
        return f"got {got}; allowed: scales for all axes, " + ", ".join(f"{n}={v!r}" for n, v in allowed.items())
    return None


def _max_unpool_refusal(node: ir.Node) -> str | None:
    return None if len(node.inputs) > 2 else "got no output_shape; allowed: with the output's shape as an input"


def _softmax_cross_entropy(site: Site) -> Call:
    function = partial(
        loss.softmax_cross_entropy,
        reduction=site.attribute("reduction", "mean"),
        ignore_index=site.attribute("ignore_index"),
    )
    return Call(_first(function, site.outputs), site.given())


def _batch_normalization(site: Site) -> Call:
    epsilon = site.attribute("epsilon", 1e-5)
    if not site.attribute("training_mode", 0):
        return Call(partial(normalization.batch_normalization, epsilon=epsilon), (0, 1, 2, 3, 4))
    momentum = site.attribute("momentum", 0.9)
    function = partial(normalization.batch_normalization_in_training, epsilon=epsilon, momentum=momentum)
    return Call(_first(function, site.outputs), (0, 1, 2, 3, 4))


def _layer_normalization(site: Site) -> Call:
    axis, epsilon = site.attribute("axis", -1), site.attribute("epsilon", 1e-5)
    return Call(
        _first(partial(normalization.layer_normalization, axis=axis, epsilon=epsilon), site.outputs), site.given()
    )


def _first(function: Callable[..., tuple[Array, ...]], outputs: int) -> Callable[..., Any]:
    """The function with as many of its results as somebody reads; one alone is no tuple."""
    if outputs == 1:
        return lambda *values: function(*values)[0]
    return lambda *values: function(*values)[:outputs]


OPERATORS: dict[str, Operator] = {
    "Abs": _plain(np.abs, in_place=True),
    "Add": _plain(np.add, in_place=True),
    "And": _plain(np.logical_and),
    "AveragePool": Operator(_average_pool),
    "BatchNormalization": Operator(_batch_normalization),
    "Cast": Operator(_cast, view=True),
    "Ceil": _plain(np.ceil, in_place=True),
    "Clip": Operator(_clip),
    "Concat": Operator(_concat),
    "Constant": Operator(lambda site: Call(lambda: constant_value(site.node), ())),
    "ConstantOfShape": Operator(_constant_of_shape),
    "Conv": Operator(_conv),
    "ConvTranspose": Operator(_conv_transpose, refusal=_conv_transpose_refusal),
    "Cos": _plain(np.cos, in_place=True),
    "Div": Operator(_divide),
    "Elu": _set(activation.elu, alpha=1.0),
    "Equal": _plain(np.equal),
    "Erf": _plain(activation.erf),
    "Exp": _plain(np.exp, in_place=True),
    "Expand": Operator(lambda site: _with_constants(site, shape.expand, "shape"), view=True),
    "Flatten": Operator(lambda site: Call(partial(shape.flatten, axis=site.attribute("axis", 1)), (0,)), view=True),
    "Floor": _plain(np.floor, in_place=True),
    "Gather": _set(index.gather, axis=0),
    "GatherElements": _set(index.gather_elements, axis=0),
    "GatherND": _set(index.gather_nd, batch_dims=0),
    "Gelu": _set(activation.gelu, approximate="none"),
    "Gemm": Operator(_gemm),
    "GlobalAveragePool": _plain(pooling.global_average_pool),
    "Greater": _plain(np.greater),
    "GreaterOrEqual": _plain(np.greater_equal),
    "HardSigmoid": _set(activation.hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": _plain(activation.hard_swish),
    "Identity": _plain(lambda x: x, view=True),
    "IsInf": _plain(np.isinf),
    "IsNaN": _plain(np.isnan),
    "LayerNormalization": Operator(_layer_normalization),
    "LeakyRelu": _set(activation.leaky_relu, alpha=0.01),
    "Less": _plain(np.less),
    "LessOrEqual": _plain(np.less_equal),
    "Log": _plain(np.log, in_place=True),
    "LogSoftmax": _set(activation.log_softmax, axis=-1),
    "MatMul": _plain(np.matmul),
    "Max": _combination(np.maximum),
    "MaxPool": Operator(_max_pool, refusal=_max_pool_refusal),
    "MaxUnpool": Operator(lambda site: Call(pooling.max_unpool, (0, 1, 2)), refusal=_max_unpool_refusal),
    "Min": _combination(np.minimum),
    "Mod": Operator(_modulo),
    "Mul": _plain(np.multiply, in_place=True),
    "Neg": _plain(np.negative, in_place=True),
    "NonZero": _plain(lambda x: np.array(np.nonzero(x), dtype=np.int64)),
    "Not": _plain(np.logical_not),
    "OneHot": _set(shape.one_hot, axis=-1),
    "Or": _plain(np.logical_or),
    "Pad": Operator(_pad, refusal=_pad_refusal),
    "Pow": _plain(elementwise.power),
    "Range": _plain(shape.number_range),
    "Reciprocal": _plain(lambda x: x.dtype.type(1) / x),
    "ReduceL2": _reduction(reduction.root_of_squares),
    "ReduceMax": _reduction(reduction.reduce, ufunc=np.maximum),
    "ReduceMean": _reduction(reduction.mean),
    "ReduceMin": _reduction(reduction.reduce, ufunc=np.minimum),
    "ReduceProd": _reduction(reduction.reduce, ufunc=np.multiply),
    "ReduceSum": _reduction(reduction.reduce, ufunc=np.add),
    "ReduceSumSquare": _reduction(reduction.sum_of_squares),
    "Relu": _plain(activation.relu, in_place=True),
    "Reshape": Operator(_reshape, view=True),
    "Resize": Operator(_resize, refusal=_resize_refusal),
    "Round": _plain(np.rint, in_place=True),
    "ScatterElements": _set(index.scatter_elements, axis=0, reduction="none"),
    "ScatterND": _set(index.scatter_nd, reduction="none"),
    "Shape": Operator(_shape),
    "Sigmoid": _plain(activation.sigmoid),
    "Sign": _plain(np.sign, in_place=True),
    "Sin": _plain(np.sin, in_place=True),
    "Size": _plain(lambda x: np.array(np.size(x), dtype=np.int64)),
    "Slice": Operator(_slice, view=True),
    "Softmax": _set(activation.softmax, axis=-1),
    "SoftmaxCrossEntropyLoss": Operator(_softmax_cross_entropy),
    "Softplus": _plain(activation.softplus),
    "Split": Operator(_split, view=True),
    "Sqrt": _plain(np.sqrt, in_place=True),
    "Squeeze": Operator(lambda site: _with_constants(site, shape.squeeze, "axes"), view=True, refusal=_axes_refusal),
    "Sub": _plain(np.subtract, in_place=True),
    "Sum": _combination(np.add),
    "Tanh": _plain(np.tanh, in_place=True),
    "Tile": Operator(lambda site: _with_constants(site, shape.tile, "repeats")),
    "Transpose": Operator(_transpose, view=True),
    "Trilu": Operator(_trilu),
    "Unsqueeze": Operator(
        lambda site: _with_constants(site, shape.unsqueeze, "axes"), view=True, refusal=_axes_refusal
    ),
    "Where": _plain(elementwise.where),
    "Xor": _plain(np.logical_xor),
}


def constant_value(node: ir.Node) -> Array:
    """The value of a Constant node, or of what else it may be written as."""
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64)):
        if name in node.attributes:
            return np.array(attribute(node, name), dtype=dtype)
    if "value_ints" in node.attributes:
        return np.array(attribute(node, "value_ints"), dtype=np.int64)
    return np.array(attribute(node, "value").numpy())


def supports(node: ir.Node) -> Support:
    """Whether the reference can run a node, and if not, why."""
    operator = OPERATORS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if operator is None:
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return Support(False, f"the reference has no kernel for {kind}; allowed: {', '.join(OPERATORS)}")
    if node.op_type == "Constant" and not {"value", "value_float", "value_floats", "value_int", "value_ints"} & set(
        node.attributes
    ):
        return Support(False, f"got {', '.join(node.attributes)}; allowed: a constant of numbers")
    for value in node.outputs:
        if value.dtype in _OTHER_FLOATS:
            return Support(False, f"got element type {value.dtype.name}; allowed: FLOAT, DOUBLE and integers")
    reason = operator.refusal(node)
    return Support(True) if reason is None else Support(False, reason)
