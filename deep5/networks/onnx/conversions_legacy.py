"""Conversions of operators that opsets before 7 define differently: broadcasting from an axis, types by name."""

from __future__ import annotations

import numpy as np
import onnx

from deep5.core.errors import NetworkError
from deep5.networks.onnx.converting import Place
from deep5.networks.onnx.element_types import called

__all__ = ["broadcast_from_axis", "named_type", "refuse_training", "repeats_of_one_axis", "whole_power"]


def broadcast_from_axis(node: onnx.NodeProto, place: Place) -> list[onnx.NodeProto]:
    """Before opset 7 the second input is aligned with the dimensions of the first from `axis` on.

    Without `axis` it is aligned with the last ones, as since opset 7; the slopes of a PRelu with the channels.
    """
    given = {each.name: each.i for each in node.attribute if each.name in ("axis", "broadcast")}
    kept = [each for each in node.attribute if each.name not in given]
    del node.attribute[:]
    node.attribute.extend(kept)
    axis = given.get("axis", -1) if node.op_type != "PRelu" else 1
    if axis < 0 or (node.op_type != "PRelu" and not given.get("broadcast", 0)):
        return [node]
    first, second, y = node.input[0], node.input[1], node.output[0]
    rank, own = place.rank(first), place.rank(second)
    if node.op_type == "PRelu" and own is not None and own != 1:
        return [node]  # a slope per element, or one for all
    if rank is not None and own is not None:
        missing = rank - axis - own
        if own == 0 or missing <= 0:
            return [node]
        axes = place.constant(f"{y}/axes", np.arange(own, own + missing))
        node.input[1] = place.compute("Unsqueeze", [second, axes], f"{y}/aligned")
        return [node]
    # Ranks that only a run knows: the shape of the second input and as many ones as dimensions follow.
    shape = place.compute("Shape", [second], f"{y}/second")
    ranks = [
        place.compute("Size", [each], f"{y}/rank") for each in (place.compute("Shape", [first], f"{y}/first"), shape)
    ]
    rest = place.compute("Sub", [ranks[0], ranks[1]], f"{y}/rest")
    rest = place.compute("Sub", [rest, place.constant(f"{y}/axis", np.array(axis, np.int64))], f"{y}/missing")
    rest = place.compute("Max", [rest, place.constant(f"{y}/none", np.array(0, np.int64))], f"{y}/count")
    rest = place.compute("Reshape", [rest, place.constant(f"{y}/vector", np.array([1], np.int64))], f"{y}/counts")
    one = onnx.numpy_helper.from_array(np.array([1], np.int64))
    ones = place.compute("ConstantOfShape", [rest], f"{y}/ones", value=one)
    goal = place.compute("Concat", [shape, ones], f"{y}/dimensions", axis=0)
    node.input[1] = place.compute("Reshape", [second, goal], f"{y}/aligned")
    return [node]


def named_type(node: onnx.NodeProto, place: Place) -> list[onnx.NodeProto]:
    """Before opset 6, Cast names its type: a string, such as "FLOAT"."""
    for each in node.attribute:
        if each.name == "to" and each.type == onnx.AttributeProto.STRING:
            name = each.s.decode(errors="replace")
            if name not in onnx.TensorProto.DataType.keys():  # noqa: SIM118 - protobuf's enumeration is no dictionary
                raise NetworkError(
                    f"{called(node.name, node.op_type, node.output)} of opset 5 or older casts to {name!r}; allowed: a "
                    "type of onnx.TensorProto, such as 'FLOAT'"
                )
            each.CopyFrom(onnx.helper.make_attribute("to", onnx.TensorProto.DataType.Value(name)))
    return [node]


def refuse_training(node: onnx.NodeProto, place: Place) -> list[onnx.NodeProto]:
    """Before opset 7, `is_test=0` requires random numbers in every run."""
    kept = [each for each in node.attribute if each.name != "is_test"]
    if any(each.name == "is_test" and not each.i for each in node.attribute):
        raise NetworkError(
            f"{called(node.name, node.op_type, node.output)} of opset 6 or older has is_test=0, which draws random "
            "numbers in every run; allowed: is_test=1; remedy: set it: training draws masks nevertheless"
        )
    del node.attribute[:]
    node.attribute.extend(kept)
    return [node]


def whole_power(node: onnx.NodeProto, place: Place) -> list[onnx.NodeProto]:
    """In opset 1 the power of an Lp pooling is a float."""
    for each in node.attribute:
        if each.name == "p" and each.type == onnx.AttributeProto.FLOAT:
            if not each.f.is_integer():
                raise NetworkError(
                    f"{called(node.name, node.op_type, node.output)} of opset 1 has p={each.f}; allowed: an integer, "
                    "as every newer opset requires"
                )
            each.CopyFrom(onnx.helper.make_attribute("p", int(each.f)))
    return [node]


def repeats_of_one_axis(node: onnx.NodeProto, place: Place) -> list[onnx.NodeProto]:
    """Before opset 6, Tile repeats one axis: two numbers of the data's type, as inputs."""
    x, tiles, axis = node.input
    y, integer = node.output[0], onnx.TensorProto.INT64
    zero, one = (place.constant(f"{y}/{number}", np.array(number, np.int64)) for number in (0, 1))
    rank = place.compute("Size", [place.compute("Shape", [x], f"{y}/dimensions")], f"{y}/rank")
    places = place.compute("Range", [zero, rank, one], f"{y}/places")
    chosen = place.compute("Equal", [places, place.compute("Cast", [axis], f"{y}/axis", to=integer)], f"{y}/chosen")
    times = place.compute("Cast", [tiles], f"{y}/tiles", to=integer)
    repeats = place.compute("Where", [chosen, times, one], f"{y}/repeats")
    del node.input[1:]
    node.input.append(repeats)
    return [node]
