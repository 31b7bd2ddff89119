"""`straight_line`: a traced function of few operations as Python source that calls them one after another.

A call of a traced function takes 60 to 130 us before its first operation, and a direct call of an operation 5 to 15 us:
a benchmark of a small operator in a function would measure TensorFlow's function call overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.execute import quick_execute
from tensorflow.python.eager.record import could_possibly_record

from deep5.frameworks.tensorflow.compiled import OPERATION

__all__ = ["straight_line"]

# Longer functions stay traced: for thirteen small operations both take the same time.
_FEW = 8
# Functions that pass more data between operations stay traced too: a function computes in place, and runs two
# operations at once, which saves 16 us per MiB (HardSwish, Conv with a bias).
_PASSED_BYTES = 2 * 2**20
# Operations without cost: a constant is created once, the others return their input unchanged.
_FREE = ("Const", "Identity", "StopGradient")
# Attributes in the form that TensorFlow's own functions pass them.
_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "string": lambda value: value,
    "type": lambda value: value.as_datatype_enum,
}


def straight_line(function: Any, device: str) -> Callable[..., Any] | None:
    """A function of the same tensors with the same results; None if calling the traced function is better.

    The last bits may differ if TensorFlow rewrites arithmetic in a function, such as a division by a constant.

    Args:
        function: A concrete function of tensors, whose outputs are tuples of tensors and None.
        device: The device to run on, as TensorFlow names it.
    """
    graph, needed = function.graph, _needed(function)
    operations = [operation for operation in needed if operation.type not in _FREE]
    passed = {value.ref() for operation in operations for value in operation.inputs if value.op in operations}
    sizes = [value.deref().shape.num_elements() for value in passed]
    # A user-defined function may place operations on other devices.
    if len(operations) > _FEW or None in sizes or len({operation.device for operation in operations}) > 1:
        return None
    if sum(size * value.deref().dtype.size for size, value in zip(sizes, passed, strict=True)) > _PASSED_BYTES:
        return None
    bound: dict[str, Any] = {"execute": quick_execute, "here": context.context()}
    names = {value.ref(): f"x{number}" for number, value in enumerate(graph.inputs)}
    for outer, inner in graph.captures:
        if not isinstance(outer, tf.Tensor) or outer.dtype == tf.resource:
            return None
        bound[names[inner.ref()]] = outer
    arguments = [name for name in names.values() if name not in bound]
    lines: list[str] = []
    for operation in graph.get_operations():
        # Operations with side effects or control dependencies stay in the graph.
        stateful = operation.op_def.is_stateful and operation.type not in ("Placeholder", OPERATION)
        if stateful or operation.control_inputs or "_gradient_op_type" in operation.node_def.attr:
            return None
        if operation not in needed:
            continue
        if operation.type == "Const":
            name = names[operation.outputs[0].ref()] = f"c{len(bound)}"
            with tf.init_scope(), tf.device(device):  # a user-defined function may be tracing now
                bound[name] = tf.constant(tf.get_static_value(operation.outputs[0]), operation.outputs[0].dtype)
        elif operation.type in _FREE:
            names[operation.outputs[0].ref()] = names[operation.inputs[0].ref()]
        else:
            text = _call(operation, names, bound)
            if text is None or not operation.outputs:
                return None
            made = [f"v{len(names) + number}" for number, _ in enumerate(operation.outputs)]
            names.update((value.ref(), name) for value, name in zip(operation.outputs, made, strict=True))
            lines.append(f"{''.join(f'{name}, ' for name in made)}= {text}")
    lines.append(f"return {_text(function.structured_outputs, names)}")
    source = "\n    ".join([f"def call({', '.join(arguments)}):", *lines])
    exec(source, bound)  # noqa: S102 - the names are generated, and attributes are bound
    line: Callable[..., Any] = bound.pop("call")  # refers to the bound names
    anywhere = not tf.config.list_logical_devices("GPU")

    def call(*tensors: Any) -> Any:
        # A tape does not record an operation called this way, and a graph does not contain it.
        if could_possibly_record() or not tf.executing_eagerly():
            return function(*tensors)
        if anywhere:
            return line(*tensors)
        with tf.device(device):
            return line(*tensors)

    return call


def _needed(function: Any) -> set[Any]:
    """The operations that the outputs depend on."""
    found: set[Any] = set()
    left = [value.op for value in function.outputs]
    while left:
        operation = left.pop()
        if operation not in found and operation.type != "Placeholder":
            found.add(operation)
            left += [value.op for value in operation.inputs]
    return found


def _call(operation: Any, names: Mapping[Any, str], bound: dict[str, Any]) -> str | None:
    """The call of an operation; None if it has attributes that cannot be passed to it."""
    attributes: list[Any] = []
    for attribute in operation.op_def.attr:
        convert = _ATTRIBUTES.get(attribute.type.removeprefix("list(").removesuffix(")"))
        if convert is None:
            return None
        value = operation.get_attr(attribute.name)
        value = [convert(part) for part in value] if attribute.type.startswith("list") else convert(value)
        attributes += [attribute.name, value]
    given = f"a{len(bound)}"
    bound[given] = tuple(attributes)
    inputs = ", ".join(names[value.ref()] for value in operation.inputs)
    return f"execute({operation.type!r}, {len(operation.outputs)}, [{inputs}], {given}, here)"


def _text(structure: Any, names: Mapping[Any, str]) -> str:
    if structure is None:
        return "None"
    if isinstance(structure, (tuple, list)):
        return f"({''.join(f'{_text(part, names)}, ' for part in structure)})"
    return names[structure.ref()]
