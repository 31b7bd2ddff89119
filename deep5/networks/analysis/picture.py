"""Draw a network's graph as SVG: one box per node, colored by the kind of its operator, edges from top to bottom."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from deep5.core.errors import UsageError
from deep5.core.quantities import count, percent, size
from deep5.core.tensors import TensorSpec
from deep5.core.terminal import plain
from deep5.networks.analysis.analysis import Layer, NetworkAnalysis
from deep5.networks.analysis.layout import Point, layered
from deep5.networks.network import Network

__all__ = ["MOST_NODES", "colour_of", "shaded_colours", "shortened", "shown_shape", "svg"]

MOST_NODES = 4000
"""A picture of more nodes is rejected: it would be unreadable."""

# Points where edges pass layers; in a network whose nodes read all earlier ones, their number grows quadratically.
_MOST_PASSED = 30_000
# Characters of a name on a box, in the heading, and in a tooltip.
_NAME, _HEADING, _TOOLTIP = 26, 120, 300
# Pixels: a character in 12 px bold, and in 11 px; around the text of a box; around the picture.
_LETTER, _SMALL_LETTER, _PADDING, _MARGIN = 8.0, 7.0, 18.0, 20.0
_BOX, _ROUND = 42.0, 5.0

# Kinds of operators: fill color, border color, and the operators.
_KINDS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "convolution": ("#d6e6f5", "#3b6ea5", ("Conv", "ConvTranspose", "ConvInteger", "DeformConv", "QLinearConv")),
    "product": ("#fde3cd", "#c8702a", ("Einsum", "Gemm", "MatMul", "MatMulInteger", "Attention")),
    "recurrent": ("#f0dfd3", "#8c564b", ("GRU", "LSTM", "RNN")),
    "normalization": (
        "#d5efec", "#2f8f83",
        ("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN", "LayerNormalization",
         "LpNormalization", "MeanVarianceNormalization", "RMSNormalization"),
    ),
    "activation": (
        "#dff0d8", "#4f8f3a",
        ("Celu", "Clip", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax", "Mish", "PRelu",
         "Relu", "Selu", "Sigmoid", "Softmax", "Softplus", "Softsign", "Swish", "Tanh", "ThresholdedRelu"),
    ),
    "pooling": (
        "#e8def3", "#7c55a6", ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool")
    ),
    "dropout": ("#f7f0c8", "#a08a1e", ("Dropout",)),
    "loss": ("#f9d8d8", "#b8393b", ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")),
    "arithmetic": (
        "#e3e6f6", "#6470b0",
        ("Add", "Div", "Exp", "Log", "Max", "Min", "Mul", "Neg", "Pow", "ReduceMean", "ReduceSum", "Reciprocal", "Sqrt",
         "Sub", "Sum", "Where"),
    ),
    "another operator": ("#ececec", "#707070", ()),
}  # fmt: skip
_KIND_OF = {operator: kind for kind, (_, _, operators) in _KINDS.items() for operator in operators}
_OTHER = "another operator"
# Distinct shades for operators of one kind: towards white or black, and how far.
_SHADES = ((255, 0.0), (255, 0.45), (0, 0.4), (255, 0.7), (0, 0.65), (255, 0.22))
_FED, _GIVEN = "input", "output"

# A picture within a page shares its styles with the page: each rule is for this picture only.
_SCOPE = "deep5-graph"
_STYLE = "\n".join(
    f".{_SCOPE} {selector}{{{rule}}}"
    for selector, rule in (
        ("text", 'font-family:"DejaVu Sans",Verdana,Arial,sans-serif;text-anchor:middle;fill:#1c1c1c'),
        (".op", "font-size:12px;font-weight:bold"),
        (".shape", "font-size:11px;fill:#444"),
        (".legend", "font-size:11px;text-anchor:start"),
        (".title", "font-size:14px;font-weight:bold;text-anchor:start"),
        (".note", "font-size:11px;text-anchor:start;fill:#444"),
        ("path", "fill:none;stroke:#8a8a8a;stroke-width:1.2"),
        (".box rect", "stroke-width:1.2"),
        (".unknown rect", "stroke-dasharray:5 3"),
        (".input rect", "fill:#fff;stroke:#333"),
        (".output rect", "fill:#fff;stroke:#333"),
        (".head", "fill:#8a8a8a;stroke:none"),
    )
)


@dataclass(frozen=True, kw_only=True)
class _Box:
    """The drawing of a node, or of a network input or output.

    Attributes:
        kind: A key of `_KINDS`, or input or output.
        title: Its first line.
        below: Its second line.
        tooltip: The text of its tooltip.
        unknown: Whether deep5 has no formula for it.
    """

    kind: str
    title: str
    below: str
    tooltip: str
    unknown: bool = False

    @property
    def size(self) -> Point:
        wide = max(_width(self.title) * _LETTER, _width(self.below) * _SMALL_LETTER)
        return wide + _PADDING, _BOX


def svg(network: Network, found: NetworkAnalysis) -> str:
    """The graph as SVG: every node shows its operator, name and output shape, and more in a tooltip.

    Args:
        network: The network to draw, without constants, as in the analysis.
        found: The result of `analyse` for this network.

    Raises:
        UsageError: The network has more nodes or longer edges than a picture can show.
    """
    nodes = [node for node in network.model.graph if node.op_type != "Constant" or node.domain]
    if len(nodes) > MOST_NODES:
        raise UsageError(
            f"a picture of {len(nodes)} nodes; allowed: up to {MOST_NODES}; remedy: a part, network.subnetwork"
        )
    boxes, edges = _graph(network, nodes, found)
    _check_passed(edges)
    drawn = layered([box.size for box in boxes], edges)
    kinds = [kind for kind in _KINDS if any(box.kind == kind for box in boxes)]
    unknown = any(box.unknown for box in boxes)
    heading = [_text("title", _MARGIN, 30, shortened(found.name or "network", _HEADING))]
    extents = ", ".join(f"{name} = {extent}" for name, extent in found.extents.items())
    counted = f"{found.parameters:,} parameters, {'at least ' if unknown else ''}{count(found.flops, 'FLOP')} forward"
    subtitle = shortened(f"{counted}{f', {extents}' if extents else ''}", _HEADING)
    heading.append(_text("note", _MARGIN, 48, subtitle))
    legend, wide = _legend(kinds, unknown, 68)
    top = 104.0
    width = max(drawn.width, wide, _width(subtitle) * _SMALL_LETTER, 300.0) + 2 * _MARGIN
    height = drawn.height + top + _MARGIN
    shift = (width - drawn.width) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{_SCOPE}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{_safe(shortened(found.name or 'network', _TOOLTIP))}</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        *heading,
        *legend,
        f'<g transform="translate({shift:.1f} {top:.0f})">',
        *(f'<path d="{_curve(points)}"/>' for points in drawn.lanes),
        *(f'<path d="{_curve(points)}" marker-end="url(#head)"/>' for points in drawn.ends),
        *(_drawn(box, corner) for box, corner in zip(boxes, drawn.corners, strict=True)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _graph(
    network: Network, nodes: Sequence[ir.Node], found: NetworkAnalysis
) -> tuple[list[_Box], list[tuple[int, int]]]:
    """Boxes, and edges from earlier to later boxes."""
    boxes = [
        _Box(kind=_FED, title=shortened(name), below=str(spec.dtype), tooltip=_tooltip(f"input {name}", str(spec)))
        for name, spec in network.inputs.items()
    ]
    makers = {name: place for place, name in enumerate(network.inputs)}
    edges = []
    for node, layer in zip(nodes, found.layers, strict=True):
        own = len(boxes)
        edges += [(makers[name], own) for name in _read(node) if name in makers]
        makers.update((str(value.name), own) for value in node.outputs if value.name)
        boxes.append(_box(layer, found))
    for name, spec in network.outputs.items():
        if name in makers:
            edges.append((makers[name], len(boxes)))
        boxes.append(
            _Box(kind=_GIVEN, title=shortened(name), below=str(spec.dtype), tooltip=_tooltip(f"output {name}"))
        )
    return boxes, edges


def _read(node: ir.Node) -> Iterator[str]:
    """Names of the values that a node reads, including those that its nested graphs capture."""
    for value in node.inputs:
        if value is not None and value.name:
            yield str(value.name)
    for attribute in node.attributes.values():
        graphs = attribute.value if isinstance(attribute.value, (list, tuple)) else (attribute.value,)
        for graph in graphs:
            if isinstance(graph, ir.Graph):
                for inner in graph:
                    yield from _read(inner)
                yield from (str(value.name) for value in graph.outputs if value.name)


def _box(layer: Layer, found: NetworkAnalysis) -> _Box:
    operator = layer.op_type.rpartition(".")[2]
    named = layer.name if layer.name.startswith(operator) else f"{operator} {layer.name}"
    shapes = [shown_shape(spec) for spec in layer.outputs]
    lines = [
        f"{layer.op_type} {layer.name}",
        f"output: {', '.join(str(spec) for spec in layer.outputs)}",
        f"parameters: {layer.parameters:,}",
    ]
    if layer.arithmetic is None:
        lines.append("FLOP: unknown, deep5 has no formula for this operator")
    else:
        share = layer.arithmetic.flops / found.flops if found.flops else 0.0
        lines.append(
            f"FLOP: {layer.arithmetic.flops:,} ({percent(share, 1)}); multiply-adds: {layer.arithmetic.macs:,}"
        )
    lines.append(f"memory of its outputs: {size(layer.activation_bytes)}")
    return _Box(
        kind=_KIND_OF.get(layer.op_type, _OTHER),
        title=shortened(named),
        below=shortened(shapes[0] + (f" +{len(shapes) - 1}" if len(shapes) > 1 else "") if shapes else "-"),
        tooltip=_tooltip(*lines),
        unknown=layer.arithmetic is None,
    )


def _check_passed(edges: Sequence[tuple[int, int]]) -> None:
    """Reject graphs whose lanes pass too many layers to draw; a lane extends at most to its farthest reader."""
    rank: dict[int, int] = {}
    farthest: dict[int, int] = {}
    for source, reader in edges:  # in the order of their readers
        rank[reader] = max(rank.get(reader, 0), rank.get(source, 0) + 1)
    for source, reader in edges:
        farthest[source] = max(farthest.get(source, 0), rank[reader])
    passed = sum(far - rank.get(source, far - 1) - 1 for source, far in farthest.items())
    if passed > _MOST_PASSED:
        raise UsageError(
            f"a picture whose edges pass layers {passed} times; allowed: up to {_MOST_PASSED} times; remedy: a part, "
            "network.subnetwork"
        )


def _drawn(box: _Box, corner: Point) -> str:
    (x, y), (width, height) = corner, box.size
    ends = box.kind in (_FED, _GIVEN)
    colours = "" if ends else ' fill="{}" stroke="{}"'.format(*_KINDS[box.kind][:2])
    about = f"box {box.kind if ends else 'node'}{' unknown' if box.unknown else ''}"
    return (
        f'<g class="{about}"><title>{_safe(box.tooltip)}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{_BOX / 2 if ends else _ROUND:g}"{colours}/>'
        f"{_text('op', x + width / 2, y + 18, box.title)}{_text('shape', x + width / 2, y + 33, box.below)}</g>"
    )


def _legend(kinds: Sequence[str], unknown: bool, y: float) -> tuple[list[str], float]:
    """One entry per kind in one row, and the row's width."""
    parts, x = [], _MARGIN
    for kind in kinds:
        fill, border, _ = _KINDS[kind]
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.0f}" width="12" height="12" rx="2" fill="{fill}" stroke="{border}"/>'
            + _text("legend", x + 17, y + 10, kind)
        )
        x += 17 + len(kind) * _SMALL_LETTER + 16
    if unknown:
        text = "no formula known"
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.0f}" width="12" height="12" rx="2" fill="#ffffff" stroke="#333333" '
            f'stroke-dasharray="3 2"/>{_text("legend", x + 17, y + 10, text)}'
        )
        x += 17 + len(text) * _SMALL_LETTER + 16
    return parts, x - _MARGIN


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_safe(text)}</text>'


def _curve(points: Sequence[Point]) -> str:
    """Straight down, across in a curve, straight down."""
    (x, begin), (_, top), (to, bottom), (_, end) = points
    if abs(x - to) < 0.05:
        return f"M{x:.1f} {begin:.1f}V{end:.1f}"
    middle = (top + bottom) / 2
    over = f"C{x:.1f} {middle:.1f} {to:.1f} {middle:.1f} {to:.1f} {bottom:.1f}"
    before = f"V{top:.1f}" if top > begin else ""
    after = f"V{end:.1f}" if end > bottom else ""  # an arrowhead has no direction on a piece of length 0
    return f"M{x:.1f} {begin:.1f}{before}{over}{after}"


def _tooltip(*lines: str) -> str:
    return "\n".join(shortened(line, _TOOLTIP) for line in lines)


def _safe(text: str) -> str:
    return html.escape(text)


def _width(text: str) -> int:
    """The width of a string in characters; East Asian wide characters count twice."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def colour_of(op_type: str) -> str:
    """The border color of an operator's kind.

    >>> colour_of("Conv") == colour_of("ConvTranspose"), colour_of("Conv") == colour_of("Relu")
    (True, False)
    """
    return _KINDS[_KIND_OF.get(op_type, _OTHER)][1]


def shaded_colours(op_types: Collection[str]) -> dict[str, str]:
    """Colors for operators shown side by side: the kind's color for the first of a kind, shades of it for the others.

    The result does not depend on the order of the argument: the same operators have the same colors.

    >>> found = shaded_colours(["Relu", "Conv", "Gelu"])
    >>> found["Conv"] == colour_of("Conv"), found["Gelu"] == colour_of("Gelu"), found["Relu"] == colour_of("Relu")
    (True, True, False)
    """
    places: dict[str, int] = {}
    found = {}
    for op_type in sorted(set(op_types)):
        kind = _KIND_OF.get(op_type, _OTHER)
        place = places.get(kind, 0)
        places[kind] = place + 1
        towards, share = _SHADES[place % len(_SHADES)]
        own = [int(colour_of(op_type)[start : start + 2], 16) for start in (1, 3, 5)]
        found[op_type] = "#" + "".join(f"{round(part + (towards - part) * share):02x}" for part in own)
    return found


def shortened(text: str, letters: int = _NAME) -> str:
    """A string of at most this many characters, its middle replaced, without terminal control characters.

    >>> shortened("/model/layer4/layer4.2/conv3/Conv")
    '/model/layer4…2/conv3/Conv'
    """
    shown = plain(text[: 20 * letters] if len(text) <= 20 * letters else f"{text[:letters]}{text[-letters:]}")
    shown = shown.replace("\n", " ")
    if len(shown) <= letters:
        return shown
    return f"{shown[: letters // 2]}…{shown[-(letters - letters // 2 - 1) :]}"


def shown_shape(spec: TensorSpec) -> str:
    """The dimensions for display.

    >>> shown_shape(TensorSpec(shape=(1, 64, 7, 7))), shown_shape(TensorSpec(shape=()))
    ('1×64×7×7', 'scalar')
    """
    if spec.collection or not spec.ranked:
        return spec.collection or "unknown"
    return "×".join(str(extent) if isinstance(extent, int) else _symbol(extent) for extent in spec.shape) or "scalar"


def _symbol(extent: str) -> str:
    """The name of a dimension; "?" for one that has none or one that ONNX's inference made up, or for an expression."""
    return extent if extent.isidentifier() and not extent.startswith("unk__") else "?"
