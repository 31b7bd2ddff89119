"""The table of operators: ONNX's name -> a small function that emits a call of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.backend import Support

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emit import Emitter

__all__ = ["OPERATORS", "supports"]

_DTYPES = {
    getattr(ir.DataType, name)
    for name in ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FLOAT16", "FLOAT", "DOUBLE")
}
_FLOATING = {"AveragePool", "Conv", "Gemm", "MaxPool"}

Emit = Callable[["Emitter", ir.Node], None]
OPERATORS: dict[str, Emit] = {}
_CHECKS: dict[str, Callable[[ir.Node], str | None]] = {}


def supports(node: ir.Node) -> Support:
    """Whether this node can run, and if not, why."""
    if node.domain not in ("", "ai.onnx"):
        return Support(False, f"the domain {node.domain!r} is not ONNX's own")
    if node.op_type not in OPERATORS:
        return Support(False, "the PyTorch back-end has no such operator")
    reason = _check_dtypes(node)
    if reason is None and node.op_type in _CHECKS:
        reason = _CHECKS[node.op_type](node)
    return Support(reason is None, reason or "")


def _check_dtypes(node: ir.Node) -> str | None:
    """Element types that torch computes with; the others it can at most store."""
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if value.dtype is None or value.shape is None:
            return f"the value {value.name!r} has no shape or element type; shape inference did not reach it"
        if value.dtype not in _DTYPES:
            return f"the element type {value.dtype.name} of {value.name!r}"
    first = node.inputs[0] if node.inputs else None
    if node.op_type in _FLOATING and first is not None and first.dtype is not None and first.dtype.is_integer():
        return f"whole numbers ({first.dtype.name})"
    return None


def _fixed(node: ir.Node, position: int) -> Any:
    """The value of an input as a NumPy array; None where it is left out or computed."""
    value = node.inputs[position] if position < len(node.inputs) else None
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _computed(node: ir.Node, *positions: int) -> str | None:
    """Why the node cannot run where one of these inputs is not known before anything runs."""
    for position in positions:
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is not None and value.const_value is None:
            return f"the input {value.name!r} is computed; a constant is supported"
    return None


def _spare(node: ir.Node) -> str | None:
    """Why the node cannot run where more than its first output is asked for."""
    named = [value.name for value in node.outputs[1:] if value.name]
    return f"the further outputs {', '.join(map(str, named))}" if named else None


def _number(value: float) -> str:
    """A float as source text; infinities and NaN have no literal."""
    return repr(value) if math.isfinite(value) else f"float('{value}')"


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _operator(op_type: str, check: Callable[[ir.Node], str | None] | None = None) -> Callable[[Emit], Emit]:
    def register(emit: Emit) -> Emit:
        OPERATORS[op_type] = emit
        if check is not None:
            _CHECKS[op_type] = check
        return emit

    return register


def _call(emitter: Emitter, node: ir.Node, function: Callable[..., Any], *arguments: str) -> None:
    """output = function(inputs …, further arguments)."""
    inputs = [emitter.name(value) for value in node.inputs]
    emitter.line(f"{emitter.name(node.outputs[0])} = {emitter.function(function)}({', '.join([*inputs, *arguments])})")


def _elementwise(op_type: str, function: Callable[..., Any]) -> None:
    OPERATORS[op_type] = lambda emitter, node: _call(emitter, node, function)


for _name, _function in {
    "Abs": torch.abs,
    "Add": torch.add,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Tanh": torch.tanh,
    "Where": torch.where,
}.items():
    _elementwise(_name, _function)


@_operator("Identity")
def _identity(emitter: Emitter, node: ir.Node) -> None:
    emitter.line(f"{emitter.name(node.outputs[0])} = {emitter.name(node.inputs[0])}")


@_operator("Div")
def _div(emitter: Emitter, node: ir.Node) -> None:
    dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    whole = dtype is not None and dtype.is_integer()
    _call(emitter, node, torch.div, *(["rounding_mode='trunc'"] if whole else []))


@_operator("Softmax")
def _softmax(emitter: Emitter, node: ir.Node) -> None:
    _call(emitter, node, F.softmax, f"{_attribute(node, 'axis', -1)}")


@_operator("LogSoftmax")
def _log_softmax(emitter: Emitter, node: ir.Node) -> None:
    _call(emitter, node, F.log_softmax, f"{_attribute(node, 'axis', -1)}")


@_operator("Transpose")
def _transpose(emitter: Emitter, node: ir.Node) -> None:
    rank = len(node.inputs[0].shape)  # type: ignore[union-attr,arg-type]  # shapes were inferred
    _call(emitter, node, torch.permute, repr(tuple(_attribute(node, "perm", range(rank)[::-1]))))


@_operator("Concat")
def _concat(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.name(value) for value in node.inputs)
    axis = node.attributes["axis"].value
    emitter.line(f"{emitter.name(node.outputs[0])} = {emitter.function(torch.cat)}(({inputs},), {axis})")


@_operator("Flatten")
def _flatten(emitter: Emitter, node: ir.Node) -> None:
    axis, rank = _attribute(node, "axis", 1), len(node.inputs[0].shape)  # type: ignore[union-attr,arg-type]
    axis += rank if axis < 0 else 0
    x, out = emitter.name(node.inputs[0]), emitter.name(node.outputs[0])
    if axis == 1 and rank > 1:
        emitter.line(f"{out} = {x}.flatten(1)")
    else:
        rows = " * ".join([f"{x}.shape[{index}]" for index in range(axis)] or ["1"])
        emitter.line(f"{out} = {x}.reshape({rows}, -1)")


def _check_reshape(node: ir.Node) -> str | None:
    return _computed(node, 1)


@_operator("Reshape", _check_reshape)
def _reshape(emitter: Emitter, node: ir.Node) -> None:
    x = emitter.name(node.inputs[0])
    extents = _fixed(node, 1).tolist()
    copies = not _attribute(node, "allowzero", 0)
    shape = [f"{x}.shape[{index}]" if extent == 0 and copies else str(extent) for index, extent in enumerate(extents)]
    emitter.line(f"{emitter.name(node.outputs[0])} = {x}.reshape({', '.join(shape) or '()'})")


def _check_slice(node: ir.Node) -> str | None:
    reason = _computed(node, 1, 2, 3, 4)
    steps = _fixed(node, 4)
    if reason is None and steps is not None and min(steps.tolist(), default=1) < 1:
        reason = f"steps {steps.tolist()}; torch has positive ones"
    return reason


@_operator("Slice", _check_slice)
def _slice(emitter: Emitter, node: ir.Node) -> None:
    starts, ends = _fixed(node, 1).tolist(), _fixed(node, 2).tolist()
    axes, steps = _fixed(node, 3), _fixed(node, 4)
    rank = len(node.inputs[0].shape)  # type: ignore[union-attr,arg-type]
    axes = [axis % rank for axis in (range(len(starts)) if axes is None else axes.tolist())]
    steps = [1] * len(starts) if steps is None else steps.tolist()
    parts = ["slice(None)"] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        parts[axis] = f"slice({start}, {end}, {step})"
    emitter.line(f"{emitter.name(node.outputs[0])} = {emitter.name(node.inputs[0])}[{', '.join(parts)}]")


def _check_pad(node: ir.Node) -> str | None:
    if _attribute(node, "mode", "constant") != "constant":
        return "padding other than constant"
    return _computed(node, 1, 2, 3)


@_operator("Pad", _check_pad)
def _pad(emitter: Emitter, node: ir.Node) -> None:
    pads, fill, axes = _fixed(node, 1).tolist(), _fixed(node, 2), _fixed(node, 3)
    rank = len(node.inputs[0].shape)  # type: ignore[union-attr,arg-type]
    value = 0.0 if fill is None or not fill.size else float(fill.reshape(-1)[0])
    axes = [axis % rank for axis in (range(rank) if axes is None else axes.tolist())]
    both = {axis: (pads[index], pads[index + len(axes)]) for index, axis in enumerate(axes)}
    # torch counts from the last axis.
    flat = [extent for axis in reversed(range(rank)) for extent in both.get(axis, (0, 0))]
    x, pad = emitter.name(node.inputs[0]), emitter.function(F.pad)
    emitter.line(f"{emitter.name(node.outputs[0])} = {pad}({x}, {flat}, 'constant', {_number(value)})")


@_operator("Gemm")
def _gemm(emitter: Emitter, node: ir.Node) -> None:
    alpha, beta = _attribute(node, "alpha", 1.0), _attribute(node, "beta", 1.0)
    a, b = emitter.name(node.inputs[0]), emitter.name(node.inputs[1])
    c = node.inputs[2] if len(node.inputs) > 2 else None
    out, trans_b = emitter.name(node.outputs[0]), _attribute(node, "transB", 0)
    a = f"{a}.t()" if _attribute(node, "transA", 0) else a
    vector = c is None or (c.shape is not None and len(c.shape) == 1)
    if trans_b and vector and alpha == 1.0 and beta == 1.0:
        emitter.line(f"{out} = {emitter.function(F.linear)}({a}, {emitter.name(node.inputs[1])}, {emitter.name(c)})")
        return
    b = f"{b}.t()" if trans_b else b
    if c is None:
        emitter.line(
            f"{out} = {emitter.function(torch.mm)}({a}, {b})" + ("" if alpha == 1.0 else f" * {_number(alpha)}")
        )
    else:
        addmm = emitter.function(torch.addmm)
        emitter.line(f"{out} = {addmm}({emitter.name(c)}, {a}, {b}, beta={_number(beta)}, alpha={_number(alpha)})")


def _check_window(node: ir.Node) -> str | None:
    auto = _attribute(node, "auto_pad", "NOTSET")
    rank = node.inputs[0].shape and len(node.inputs[0].shape) - 2 if node.inputs[0] is not None else None
    if auto not in ("NOTSET", "VALID"):
        return f"auto_pad={auto}; explicit pads are supported"
    if any(pad < 0 for pad in _attribute(node, "pads", ())):
        return "negative padding"
    return None if rank in (1, 2, 3) else f"{rank} spatial axes; 1 to 3 are supported"


def _window(emitter: Emitter, node: ir.Node, kernel: Sequence[int]) -> tuple[str, Any, Any, Any]:
    """Input (zeros put around it first where torch cannot), strides, pads, dilations."""
    rank = len(kernel)
    strides = tuple(_attribute(node, "strides", (1,) * rank))
    dilations = tuple(_attribute(node, "dilations", (1,) * rank))
    pads = list(_attribute(node, "pads", (0,) * 2 * rank))
    x, even = emitter.name(node.inputs[0]), pads[:rank] == pads[rank:]
    if even:
        return x, strides, tuple(pads[:rank]), dilations
    flat = [extent for axis in reversed(range(rank)) for extent in (pads[axis], pads[axis + rank])]
    return f"{emitter.function(F.pad)}({x}, {flat})", strides, (0,) * rank, dilations


@_operator("Conv", _check_window)
def _conv(emitter: Emitter, node: ir.Node) -> None:
    weight = node.inputs[1]
    kernel = tuple(_attribute(node, "kernel_shape", None) or weight.shape[2:])  # type: ignore[union-attr,index]
    x, strides, pads, dilations = _window(emitter, node, kernel)
    function = emitter.function((F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1])
    bias = emitter.name(node.inputs[2] if len(node.inputs) > 2 else None)
    out, group = emitter.name(node.outputs[0]), _attribute(node, "group", 1)
    emitter.line(f"{out} = {function}({x}, {emitter.name(weight)}, {bias}, {strides}, {pads}, {dilations}, {group})")


def _check_pool(node: ir.Node) -> str | None:
    pads, kernel = list(_attribute(node, "pads", ())), node.attributes["kernel_shape"].value
    if pads[: len(pads) // 2] != pads[len(pads) // 2 :]:
        return "different padding on both sides"
    if any(2 * pad > extent for pad, extent in zip(pads, kernel, strict=False)):
        return "padding of more than half the window"
    return _check_window(node)


def _check_average(node: ir.Node) -> str | None:
    if any(extent != 1 for extent in _attribute(node, "dilations", ())):
        return "dilations"
    return _check_pool(node)


@_operator("AveragePool", _check_average)
def _average_pool(emitter: Emitter, node: ir.Node) -> None:
    kernel = tuple(node.attributes["kernel_shape"].value)
    x, strides, pads, _ = _window(emitter, node, kernel)
    function = emitter.function((F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1])
    ceil, include = bool(_attribute(node, "ceil_mode", 0)), bool(_attribute(node, "count_include_pad", 0))
    out = emitter.name(node.outputs[0])
    emitter.line(f"{out} = {function}({x}, {kernel}, {strides}, {pads}, {ceil}, {include})")


def _check_max(node: ir.Node) -> str | None:
    return _spare(node) or _check_pool(node)


@_operator("MaxPool", _check_max)
def _max_pool(emitter: Emitter, node: ir.Node) -> None:
    kernel = tuple(node.attributes["kernel_shape"].value)
    x, strides, pads, dilations = _window(emitter, node, kernel)
    # The public functions choose by return_indices at every call; these are what they choose.
    function = emitter.function((torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)[len(kernel) - 1])
    ceil, out = bool(_attribute(node, "ceil_mode", 0)), emitter.name(node.outputs[0])
    emitter.line(f"{out} = {function}({x}, {kernel}, {strides}, {pads}, {dilations}, {ceil})")


@_operator("GlobalAveragePool")
def _global_average_pool(emitter: Emitter, node: ir.Node) -> None:
    rank = len(node.inputs[0].shape)  # type: ignore[union-attr,arg-type]
    x, out = emitter.name(node.inputs[0]), emitter.name(node.outputs[0])
    emitter.line(f"{out} = {x}.mean({tuple(range(2, rank))}, keepdim=True)")


def _check_batch_norm(node: ir.Node) -> str | None:
    if reason := _spare(node):
        return f"{reason}; running statistics are buffers of the executor"
    # Training writes into them: they must not be somebody's input.
    return _computed(node, 3, 4)


def _batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, epsilon: float
) -> Any:
    """ONNX's batch normalisation: the running variance is the population's, momentum is the old value's share."""
    if not training:
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)
    y, batch_mean, inverse = torch.native_batch_norm(x, scale, bias, None, None, True, 0.0, epsilon)
    with torch.no_grad():
        mean.mul_(momentum).add_(batch_mean, alpha=1 - momentum)
        variance.mul_(momentum).add_(inverse.pow(-2).sub_(epsilon).clamp_(min=0), alpha=1 - momentum)
    return y


@_operator("BatchNormalization", _check_batch_norm)
def _batch_normalization(emitter: Emitter, node: ir.Node) -> None:
    momentum, epsilon = _attribute(node, "momentum", 0.9), _attribute(node, "epsilon", 1e-5)
    _call(emitter, node, _batch_norm, "training", repr(momentum), repr(epsilon))


def _check_cross_entropy(node: ir.Node) -> str | None:
    return _spare(node)


@_operator("SoftmaxCrossEntropyLoss", _check_cross_entropy)
def _cross_entropy(emitter: Emitter, node: ir.Node) -> None:
    x, label, *weight = (emitter.name(value) for value in node.inputs)
    if node.inputs[1].dtype is not ir.DataType.INT64:  # type: ignore[union-attr]
        label = f"{label}.long()"
    function = emitter.function(F.cross_entropy)
    ignore = _attribute(node, "ignore_index", None)
    options = [f"weight={weight[0]}"] if weight else []
    options += [f"ignore_index={ignore}"] if ignore is not None else []
    options.append(f"reduction={_attribute(node, 'reduction', 'mean')!r}")
    emitter.line(f"{emitter.name(node.outputs[0])} = {function}({x}, {label}, {', '.join(options)})")
