"""Mutations of edges, nodes, nested graphs, functions and versions."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deep5.networks.onnx.bounds import nested_nodes
from fuzzing_parts import (
    SCHEMAS,
    TEXTS,
    UNARY,
    Inapplicable,
    feed_into,
    graphs_of,
    names_of,
    nodes_of,
    opset_of,
    pick,
    readable,
)

__all__ = [
    "as_function",
    "branches_doubled",
    "cycle",
    "edge_rewired",
    "functions_doubled",
    "further_fields",
    "huge",
    "in_loop",
    "input_added",
    "input_removed",
    "inputs_fewer",
    "inputs_swapped",
    "node_added",
    "node_twice",
    "nodes_shuffled",
    "operator_changed",
    "output_changed",
    "outputs_fewer",
    "outputs_more",
    "recursive",
    "version_changed",
]


def input_removed(rng: random.Random, model: onnx.ModelProto) -> None:
    node = pick(rng, [node for node in nodes_of(model) if node.input])
    at = rng.randrange(len(node.input))
    if rng.random() < 0.5:
        del node.input[at]
    else:
        node.input[at] = ""


def input_added(rng: random.Random, model: onnx.ModelProto) -> None:
    node = pick(rng, nodes_of(model))
    node.input.extend([pick(rng, names_of(model))] * rng.choice((1, 1, 2, 20)))


def output_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    node = pick(rng, [node for node in nodes_of(model) if node.output])
    match rng.choice(("remove", "empty", "add", "clear")):
        case "remove":
            del node.output[rng.randrange(len(node.output))]
        case "empty":
            node.output[rng.randrange(len(node.output))] = ""
        case "add":
            node.output.append(f"more{rng.randrange(9)}")
        case _:
            del node.output[:]


def edge_rewired(rng: random.Random, model: onnx.ModelProto) -> None:
    """Connect an input to another value, possibly a later one: a cycle."""
    node = pick(rng, [node for node in nodes_of(model) if node.input])
    node.input[rng.randrange(len(node.input))] = pick(rng, names_of(model))


def inputs_swapped(rng: random.Random, model: onnx.ModelProto) -> None:
    node = pick(rng, [node for node in nodes_of(model) if len(node.input) > 1])
    held = list(node.input)
    rng.shuffle(held)
    del node.input[:]
    node.input.extend(held)


def cycle(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model) if graph.node])
    first, last = graph.node[0], graph.node[-1]
    if not first.input or not last.output:
        raise Inapplicable
    first.input[0] = last.output[0]


def operator_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    """Replace an operator by another, with as many inputs if one exists."""
    node = pick(rng, nodes_of(model))
    if rng.random() < 0.1:
        node.op_type = rng.choice(("Nonesuch", *TEXTS))
        return
    count = len(node.input)
    fitting = [each for each in SCHEMAS if each.min_input <= count <= each.max_input]
    schema = pick(rng, fitting)
    node.op_type, node.domain = schema.name, schema.domain
    if rng.random() < 0.7:
        kept = [each for each in node.attribute if each.name in schema.attributes]
        del node.attribute[:]
        node.attribute.extend(kept)


def node_added(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add a node that changes some value; whatever reads that value reads its output."""
    name = pick(rng, [tensor for tensor in readable(model) if tensor])
    if rng.random() < 0.4:
        node = helper.make_node(rng.choice(UNARY), [name], ["added"])
    else:
        fitting = [each for each in SCHEMAS if not each.domain and each.max_input >= 1 and each.min_input <= 3]
        schema = rng.choice(fitting)
        count = max(schema.min_input, min(schema.max_input, rng.randrange(1, 4)))
        others = [rng.choice((name, pick(rng, readable(model)))) for _ in range(count - 1)]
        node = helper.make_node(schema.name, [name, *others], ["added"])
        for key, attribute in schema.attributes.items():
            if attribute.required or rng.random() < 0.2:
                value = {1: 0.5, 2: 1, 3: "linear", 6: [0.5], 7: [1]}.get(int(attribute.type.value))
                if value is not None:
                    node.attribute.append(helper.make_attribute(key, value))
    feed_into(rng, model, name, node)


def huge(rng: random.Random, model: onnx.ModelProto) -> None:
    """A few bytes that require all memory: through a shape in the file, or through a fed one."""
    extent = rng.choice((1 << 31, 1 << 36, 1 << 40, 1 << 62))
    kind = rng.choice(("ConstantOfShape", "Expand", "Range", "Tile", "Pad", "Resize", "Constant"))
    shape = rng.choice(([extent], [1 << 20, extent >> 20], [1, extent], [extent, 0]))
    number = rng.randrange(1 << 30)
    goal = f"goal_{number}"
    ints = numpy_helper.from_array(np.array(shape, np.int64), goal)
    one = numpy_helper.from_array(np.ones([1] * len(shape), np.float32), f"one_{number}")
    inputs = {"ConstantOfShape": [goal], "Expand": [one.name, goal], "Tile": [one.name, goal], "Range": [goal] * 3}
    name = pick(rng, readable(model))
    if kind in inputs:
        if kind == "Range":
            model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), f"zero_{number}"))
            model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), f"step_{number}"))
            ints = numpy_helper.from_array(np.array(extent, np.int64), goal)
            node = helper.make_node(kind, [f"zero_{number}", goal, f"step_{number}"], ["huge"])
        else:
            node = helper.make_node(kind, inputs[kind], ["huge"])
        model.graph.initializer.extend([one])
    elif kind == "Pad":
        pads = [0] * (2 * len(shape))
        pads[rng.randrange(len(pads))] = extent
        ints = numpy_helper.from_array(np.array(pads, np.int64), goal)
        model.graph.initializer.append(one)
        node = helper.make_node(kind, [one.name, goal], ["huge"])
    elif kind == "Resize":
        model.graph.initializer.append(one)
        node = helper.make_node(kind, [one.name, "", "", goal], ["huge"])
    else:
        tensor = TensorProto(data_type=1, dims=shape, raw_data=b"\0\0\0\0")
        node = helper.make_node("Constant", [], ["huge"], value=tensor)
    if rng.random() < 0.3:  # unknown before the run
        model.graph.input.append(helper.make_tensor_value_info(goal, ints.data_type, list(ints.dims)))
    elif kind != "Constant":
        model.graph.initializer.append(ints)
    feed_into(rng, model, name, node)


def node_twice(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model) if graph.node])
    graph.node.append(pick(rng, graph.node))
    for number, name in enumerate(graph.node[-1].output if rng.random() < 0.7 else ()):
        graph.node[-1].output[number] = f"{name}_again"


def nodes_shuffled(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model) if len(graph.node) > 1])
    held = list(graph.node)
    rng.shuffle(held)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in held]
    del graph.node[:]
    graph.node.extend(copies)


def outputs_more(rng: random.Random, model: onnx.ModelProto) -> None:
    """Turn inner values into outputs."""
    name = pick(rng, [name for node in model.graph.node for name in (*node.output, *node.input) if name])
    model.graph.output.append(helper.make_empty_tensor_value_info(name))
    if rng.random() < 0.5:
        model.graph.output[-1].type.CopyFrom(pick(rng, model.graph.output).type)


def outputs_fewer(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model) if graph.output])
    del graph.output[rng.randrange(len(graph.output))]


def inputs_fewer(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model) if graph.input])
    del graph.input[rng.randrange(len(graph.input))]


# Graphs inside nodes, functions and versions.


_MOST_NODES = 1 << 10
"""Above this number, models that compile exceed the time limit of a case."""


def branches_doubled(rng: random.Random, model: onnx.ModelProto) -> None:
    """An If in both branches of an If, and so on: twice as many nodes each time."""
    depth = rng.choice((1, 2, 4, 7))
    node = pick(rng, [node for node in model.graph.node if len(node.output) == 1 and node.output[0]])
    if sum(1 for _ in nested_nodes([node])) << depth > _MOST_NODES:
        raise Inapplicable
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    flag = f"flag_{rng.randrange(1 << 30)}"
    fed = rng.random() < 0.5
    for level in range(depth):
        branches = []
        for side in ("then", "else"):
            own = onnx.NodeProto()
            own.CopyFrom(inner)
            own.output[0] = f"{side}_{level}"
            output = [helper.make_empty_tensor_value_info(own.output[0])]
            branches.append(helper.make_graph([own], side, [], output))
        then, other = branches
        inner = helper.make_node("If", [flag], [f"level_{level}"], then_branch=then, else_branch=other)
    inner.output[0] = node.output[0]
    node.CopyFrom(inner)
    if fed:
        model.graph.input.append(helper.make_tensor_value_info(flag, TensorProto.BOOL, []))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), flag))


def in_loop(rng: random.Random, model: onnx.ModelProto) -> None:
    """Turn a node into the body of a loop, whose count is fed or written in the file."""
    node = pick(rng, [node for node in model.graph.node if len(node.output) == 1 and node.output[0]])
    number = rng.randrange(1 << 30)
    own = onnx.NodeProto()
    own.CopyFrom(node)
    own.output[0] = f"in_loop_{number}"
    body = helper.make_graph(
        [own, helper.make_node("Identity", [f"c_{number}"], [f"d_{number}"])],
        "body",
        [
            helper.make_tensor_value_info(f"i_{number}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"c_{number}", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info(f"d_{number}", TensorProto.BOOL, []),
            helper.make_empty_tensor_value_info(own.output[0]),
        ],
    )
    count, flag = f"count_{number}", f"yes_{number}"
    steps = rng.choice((0, 1, 3, 100, 1 << 40, -1))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), flag))
    if rng.random() < 0.4:
        model.graph.input.append(helper.make_tensor_value_info(count, TensorProto.INT64, []))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(min(steps, 100)), count))
    node.CopyFrom(helper.make_node("Loop", [count, flag], [node.output[0]], body=body))


def recursive(rng: random.Random, model: onnx.ModelProto) -> None:
    """A function that calls itself, or one that calls it."""
    names = ["own_f", "own_g"][: rng.choice((1, 2))]
    for number, name in enumerate(names):
        called = names[(number + 1) % len(names)]
        body = [helper.make_node(called, ["a"], ["b"], domain="rec")]
        opsets = [helper.make_opsetid("", opset_of(model)), helper.make_opsetid("rec", 1)]
        model.functions.append(helper.make_function("rec", name, ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("rec", 1))
    name = pick(rng, readable(model))
    feed_into(rng, model, name, helper.make_node("own_f", [name], ["called"], domain="rec"))


def functions_doubled(rng: random.Random, model: onnx.ModelProto) -> None:
    """Each function calls the one before twice: expanded, that is two to the power of their number."""
    depth = rng.choice((3, 8, 14, 30))
    opsets = [helper.make_opsetid("", opset_of(model)), helper.make_opsetid("dbl", 1)]
    for level in range(depth):
        call, domain = (f"f{level - 1}", "dbl") if level else ("Identity", "")
        body = [
            helper.make_node(call, ["a"], ["m"], domain=domain),
            helper.make_node(call, ["m"], ["b"], domain=domain),
        ]
        model.functions.append(helper.make_function("dbl", f"f{level}", ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("dbl", 1))
    name = pick(rng, readable(model))
    feed_into(rng, model, name, helper.make_node(f"f{depth - 1}", [name], ["called"], domain="dbl"))


def as_function(rng: random.Random, model: onnx.ModelProto) -> None:
    """Turn a node into the call of a function that holds it."""
    node = pick(rng, [node for node in model.graph.node if not node.domain and node.output and all(node.input)])
    number = rng.randrange(1 << 30)
    name = f"wrapped_{number}"
    inputs = list(dict.fromkeys(node.input))
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    opset = opset_of(model)
    opsets = [helper.make_opsetid("", rng.choice((opset, opset, opset, 13, 22)))]
    made = helper.make_function("wrap", name, inputs, list(node.output), [inner], opsets)
    model.functions.append(made)
    model.opset_import.append(helper.make_opsetid("wrap", 1))
    node.CopyFrom(helper.make_node(name, inputs, list(node.output), domain="wrap"))


def version_changed(rng: random.Random, model: onnx.ModelProto) -> None:
    match rng.choice(("opset", "opset", "opset", "ir", "none", "twice", "domain")):
        case "opset":
            entry = pick(rng, model.opset_import)
            entry.version = rng.choice(
                (0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 18, 19, 21, 23, 25, 26, 27, 99, -1, 1 << 40)
            )
        case "ir":
            model.ir_version = rng.choice((0, 1, 3, 4, 7, 11, 99, 1 << 40))
        case "none":
            del model.opset_import[:]
        case "twice":
            model.opset_import.append(helper.make_opsetid("", rng.choice((7, 13, 22))))
        case _:
            pick(rng, model.opset_import).domain = rng.choice(TEXTS)


def further_fields(rng: random.Random, model: onnx.ModelProto) -> None:
    match rng.choice(("metadata", "training", "doc", "quantization", "graph")):
        case "metadata":
            model.metadata_props.add(key=rng.choice(("deep5.frozen", "deep5", "", "\0")), value=rng.choice(TEXTS))
            model.graph.metadata_props.add(key="deep5.frozen", value=rng.choice(TEXTS))
        case "training":
            model.training_info.add().algorithm.CopyFrom(model.graph)
        case "doc":
            model.doc_string = model.graph.doc_string = rng.choice(TEXTS)
        case "quantization":
            model.graph.quantization_annotation.add(tensor_name=pick(rng, names_of(model)))
        case _:
            model.graph.ClearField("name")
