"""Mutations of ONNX models: of the bytes of a file, and of their meaning. Every one is a function of its seed."""

from __future__ import annotations

import random

import onnx
from onnx import TensorProto

from deep5.core.errors import NetworkError
from deep5.networks.onnx.settings import check_settings
from fuzzing_graphs import (
    as_function,
    branches_doubled,
    cycle,
    edge_rewired,
    functions_doubled,
    further_fields,
    huge,
    in_loop,
    input_added,
    input_removed,
    inputs_fewer,
    inputs_swapped,
    node_added,
    node_twice,
    nodes_shuffled,
    operator_changed,
    output_changed,
    outputs_fewer,
    outputs_more,
    recursive,
    version_changed,
)
from fuzzing_parts import Inapplicable, Mutation, attributes_of, tensor_types_of
from fuzzing_values import (
    attribute_added,
    attribute_dropped,
    attribute_extreme,
    attribute_refers,
    attribute_retyped,
    extent_changed,
    external,
    external_attribute,
    initial_as_input,
    initial_twice,
    input_as_initial,
    inputs_symbolic,
    kind_changed,
    outputs_undeclared,
    rank_changed,
    renamed,
    sparse,
    tensor_contradicts,
    tensor_reshaped,
    type_changed,
    types_all_changed,
    value_renamed_everywhere,
    values_extreme,
)

__all__ = ["FORM", "MEANING", "mutated_bytes", "mutated_model"]


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """A file with bytes flipped, cut off, removed, inserted or copied from elsewhere."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(found) + 1), rng.choice((1, 1, 2, 8, 64))
        match rng.choice(("flip", "set", "cut", "remove", "insert", "copy")):
            case "flip" if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case "set" if at < len(found):
                found[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            case "cut" if rng.random() < 0.3:
                del found[at:]
            case "remove":
                del found[at : at + length]
            case "insert":
                found[at:at] = rng.randbytes(length)
            case "copy":
                start = rng.randrange(len(found) + 1)
                found[at:at] = found[start : start + length]
    return bytes(found)


def mutated_model(rng: random.Random, model: onnx.ModelProto) -> list[str]:
    """Change the meaning of a model, in place; returns the names of the mutations.

    Most models that ONNX's own checker refuses, which never reach an executor, are drawn again.
    """
    original = model.SerializeToString()
    for _ in range(rng.choice((1, 4, 4, 6))):
        model.ParseFromString(original)
        done = _mutated(rng, model)
        if _is_plausible(model):
            break
    return done


def _mutated(rng: random.Random, model: onnx.ModelProto) -> list[str]:
    done: list[str] = []
    wanted = rng.choice((1, 1, 1, 2, 2, 3))
    if rng.random() < 0.9:
        model.ir_version = max(model.ir_version, 8)
    for _ in range(40):
        mutation = rng.choice(MEANING if rng.random() < 0.8 else FORM)
        try:
            mutation(rng, model)
        except (Inapplicable, UnicodeError):
            continue
        done.append(mutation.__name__.lstrip("_"))
        if len(done) == wanted:
            break
    if rng.random() < 0.8:
        _declare(model)
    return done


def _is_harmless(model: onnx.ModelProto) -> bool:
    """Whether ONNX's own inference terminates without ending the process."""
    if any(not 0 <= extent.dim_value <= 1 << 20 for own in tensor_types_of(model) for extent in own.shape.dim):
        return False
    sparse = any(each.HasField("sparse_tensor") for each in attributes_of(model))
    return not sparse and len(model.functions) < 8


def _is_plausible(model: onnx.ModelProto) -> bool:
    if not _is_harmless(model):
        return True
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except Exception:  # ONNX raises its own private classes
        return False
    return True


def _declare(model: onnx.ModelProto) -> None:
    """Declare the inferred types of outputs if there are any: another declaration would by itself cause a refusal."""
    try:
        check_settings("the model", model)  # also where something is missing
    except NetworkError:
        return
    if not _is_harmless(model):
        return
    free = onnx.ModelProto()
    free.CopyFrom(model)
    del free.graph.value_info[:]
    for info in free.graph.output:
        info.ClearField("type")
    try:
        free = onnx.shape_inference.infer_shapes(free)
    except Exception:  # ONNX raises its own private classes
        return
    del model.graph.value_info[:]
    for own, found in zip(model.graph.output, free.graph.output, strict=True):
        ranks = len(own.type.tensor_type.shape.dim)
        if found.type.WhichOneof("value"):
            own.type.CopyFrom(found.type)
        elif not own.type.WhichOneof("value"):
            own.type.tensor_type.elem_type = TensorProto.FLOAT
        if own.type.HasField("tensor_type") and not own.type.tensor_type.HasField("shape"):
            own.type.tensor_type.shape.SetInParent()
            for axis in range(ranks or 2):
                own.type.tensor_type.shape.dim.add(dim_param=f"{own.name}{axis}")


MEANING: tuple[Mutation, ...] = (
    *(attribute_extreme,) * 4, *(attribute_added,) * 3, *(extent_changed,) * 2, *(types_all_changed,) * 3,
    *(outputs_undeclared,) * 2, *(inputs_symbolic,) * 3, *(value_renamed_everywhere,) * 2, *(values_extreme,) * 5,
    *(tensor_reshaped,) * 2, *(initial_as_input,) * 3, *(input_as_initial,) * 5, *(inputs_swapped,) * 2,
    *(operator_changed,) * 3, *(node_added,) * 3, *(huge,) * 2, *(branches_doubled,) * 2, *(in_loop,) * 3,
    *(as_function,) * 2, version_changed, outputs_more, edge_rewired,
)  # fmt: skip
"""Mutations that leave most models valid, weighted by repetition."""
FORM: tuple[Mutation, ...] = (
    attribute_dropped, attribute_retyped, attribute_refers, rank_changed, type_changed, kind_changed, renamed,
    tensor_contradicts, initial_twice, sparse, *(external,) * 3, external_attribute, input_removed, input_added,
    output_changed, edge_rewired, cycle, node_twice, nodes_shuffled, outputs_fewer, inputs_fewer, recursive,
    *(version_changed,) * 2, further_fields, functions_doubled,
)  # fmt: skip
"""Mutations that make most models invalid."""
