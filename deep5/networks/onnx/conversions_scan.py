"""Conversion of Scan of opset 8, which has a batch axis and may end each sequence early."""

from __future__ import annotations

import numpy as np
import onnx

from deep5.networks.onnx.converting import Place

__all__ = ["scan_over_batch"]


def scan_over_batch(node: onnx.NodeProto, place: Place) -> list[onnx.NodeProto]:
    """A Scan over the batch, whose body is the Scan over one sequence, as opset 9 defines it.

    A sequence of `sequence_lens` steps reads the first ones of its inputs, also in reverse direction; the rows of its
    outputs after them are 0.
    """
    attributes = {each.name: each for each in node.attribute}
    lengths, values = node.input[0], list(node.input[1:])
    states = len(values) - attributes["num_scan_inputs"].i
    y = next(name for name in node.output if name)
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    for each in inner.attribute:
        each.name = "scan_input_directions" if each.name == "directions" else each.name
    del inner.input[:], inner.output[:]
    inputs = [place.name(f"{name}/one") for name in values]
    outputs = [place.name(f"{name or y}/one") for name in node.output]
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    inner.input.extend(inputs)
    inner.output.extend(outputs)
    if lengths:
        ended = _Ended(place=place, y=y, length=place.name(f"{lengths}/one"))
        before += ended.prepared(inputs[states])
        for position in range(states, len(inputs)):
            inner.input[position] = ended.shortened(inputs[position], before)
        for position in range(states, len(outputs)):
            inner.output[position] = ended.filled(outputs[position], after)
        inputs.append(ended.length)
        values.append(lengths)
    body = onnx.helper.make_graph(
        [*before, inner, *after],
        f"{y}/batch",
        [onnx.ValueInfoProto(name=name) for name in inputs],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    outer = onnx.NodeProto()
    outer.CopyFrom(node)
    del outer.attribute[:], outer.input[:]
    outer.input.extend(values)
    outer.attribute.append(onnx.helper.make_attribute("body", body))
    outer.attribute.append(onnx.helper.make_attribute("num_scan_inputs", len(values)))
    return [outer]


class _Ended:
    """Sequences that end early, inside the body of the Scan over the batch."""

    def __init__(self, *, place: Place, y: str, length: str) -> None:
        self.place, self.y, self.length = place, y, length
        self.first, self.end, self.rest = (place.name(f"{y}/{name}") for name in ("first", "end", "rest"))

    def prepared(self, sequence: str) -> list[onnx.NodeProto]:
        """Nodes that compute the number of steps, and of the rows after them, as `Slice` and `Pad` take them."""
        make, name = onnx.helper.make_node, self.place.name
        zero = onnx.numpy_helper.from_array(np.array([0], np.int64))
        whole, missing, wide = (name(f"{self.y}/{each}") for each in ("steps", "missing", "wide"))
        return [
            make("Constant", [], [self.first], value=zero),
            make("Shape", [sequence], [whole], start=0, end=1),
            make("Cast", [self.length], [wide], to=onnx.TensorProto.INT64),
            make("Unsqueeze", [wide, self.first], [self.end]),
            make("Sub", [whole, self.end], [missing]),
            make("Concat", [self.first, missing], [self.rest], axis=0),
        ]

    def shortened(self, name: str, nodes: list[onnx.NodeProto]) -> str:
        """The name of the steps of an input; the node that selects them is added to `nodes`."""
        steps = self.place.name(f"{name}/steps")
        nodes.append(onnx.helper.make_node("Slice", [name, self.first, self.end, self.first], [steps]))
        return steps

    def filled(self, name: str, nodes: list[onnx.NodeProto]) -> str:
        """The name of an output before rows of 0 are added; the node that adds them is added to `nodes`."""
        steps = self.place.name(f"{name}/steps")
        nodes.append(onnx.helper.make_node("Pad", [steps, self.rest, "", self.first], [name]))
        return steps
