"""What the steps of the table of conversions consist of: attributes and inputs of a node, and steps made from names."""

from __future__ import annotations

import numpy as np
import onnx

from deep5.networks.onnx.converting import Place, Step

__all__ = [
    "Nodes",
    "attribute_of",
    "defaults",
    "in_turn",
    "integers",
    "put_input",
    "renamed",
    "set_attributes",
    "taken",
    "without",
]

Nodes = list[onnx.NodeProto]


def attribute_of(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """An attribute of a node; None if it is absent."""
    return next((each for each in node.attribute if each.name == name), None)


def taken(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """An attribute, which is removed from its node."""
    for index, each in enumerate(node.attribute):
        if each.name == name:
            found = onnx.AttributeProto()
            found.CopyFrom(each)
            del node.attribute[index]
            return found
    return None


def set_attributes(node: onnx.NodeProto, **attributes: object) -> None:
    """Append attributes to a node."""
    for name, value in attributes.items():
        node.attribute.append(onnx.helper.make_attribute(name, value))


def put_input(node: onnx.NodeProto, position: int, name: str) -> None:
    """Set an input; the ones before it that the node does not have are omitted ones."""
    while len(node.input) <= position:
        node.input.append("")
    node.input[position] = name


def without(*names: str) -> Step:
    """A step for attributes that a version dropped, and that change no result."""

    def step(node: onnx.NodeProto, place: Place) -> Nodes:
        for name in names:
            taken(node, name)
        return [node]

    return step


def defaults(**values: object) -> Step:
    """A step for attributes whose default changed: a node that omits one gets the previous default."""

    def step(node: onnx.NodeProto, place: Place) -> Nodes:
        set_attributes(node, **{name: value for name, value in values.items() if attribute_of(node, name) is None})
        return [node]

    return step


def integers(name: str, position: int, *, empty: bool = True) -> Step:
    """A step for an attribute of integers that became an input; `empty` says whether an empty list is kept."""

    def step(node: onnx.NodeProto, place: Place) -> Nodes:
        given = taken(node, name)
        if given is not None and (given.ints or empty):
            array = np.array(list(given.ints), np.int64)
            put_input(node, position, place.constant(f"{node.output[0]}/{name}", array))
        return [node]

    return step


def in_turn(*steps: Step) -> Step:
    """One step after another, where each returns one node."""

    def step(node: onnx.NodeProto, place: Place) -> Nodes:
        for each in steps[:-1]:
            (node,) = each(node, place)
        return steps[-1](node, place)

    return step


def renamed(operator: str) -> Step:
    """A step for an operator that got another name."""

    def step(node: onnx.NodeProto, place: Place) -> Nodes:
        node.op_type = operator
        return [node]

    return step
