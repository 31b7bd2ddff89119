"""The export of a Keras model to ONNX, by tf2onnx, with its variables as initial values."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

import tensorflow as tf

from deep5.core.errors import MissingDependency, Unsupported, described
from deep5.core.own_model import Exported
from deep5.core.tensors import TensorSpec
from deep5.frameworks.tensorflow.keras_layers import MARK, KerasCalls
from deep5.networks.onnx.converted import with_initial_values
from deep5.networks.onnx.copied_batch import with_copied_batch
from deep5.networks.onnx.marked_layers import DOMAIN, in_order, with_marked_layers

__all__ = ["exported"]

# The newest that tf2onnx writes; deep5 converts it.
_OPSET = 18
_REMEDY = "remedy: run it as it is on tensorflow"


def exported(model: Any, name: str, inputs: Mapping[str, TensorSpec]) -> Exported:
    """The export of a model as a function of its variables, so that none is folded into another value.

    Batch normalization and dropout become one ONNX operator each, also where tf2onnx has none.

    Args:
        model: A built Keras model.
        name: Its name.
        inputs: Specifications of the inputs, without the label.

    Raises:
        MissingDependency: tf2onnx is not installed.
        Unsupported: tf2onnx does not convert the model, or its training is another function than its inference beyond
            these layers.
    """
    try:
        version = metadata.version("tf2onnx")
    except metadata.PackageNotFoundError as error:
        raise MissingDependency(
            "exporting a Keras model needs the package 'tf2onnx', which is not installed; remedy: pip install "
            "tf2onnx, or run the model as it is on tensorflow"
        ) from error
    names = {f"{index}.{variable.name}": variable for index, variable in enumerate(model.variables)}
    calls = KerasCalls()
    proto, changed = _converted(model, name, inputs, calls.traced("training"), training=True)
    layers, kept = calls.marked, (proto, calls.marked)
    if calls.twice:
        raise Unsupported(
            f"{name} calls the batch normalization {calls.twice} more than once, and each call of its training changes "
            f"its statistics; {_REMEDY}, or a layer for each call"
        )
    if calls.drops:
        kept = _converted(model, name, inputs, calls.traced("without dropout"), training=True)[0], calls.marked
    evaluated = _converted(model, name, inputs, calls.traced("evaluation"), training=False)[0], calls.marked
    if _nodes(kept[0]) != _nodes(evaluated[0]) or kept[1] != evaluated[1]:
        if any(node.op_type.startswith("StatelessRandom") for node in evaluated[0].graph.node):
            raise Unsupported(
                f"{name} draws random numbers also in evaluation, such as dropout with training=True; allowed: dropout "
                f"in training only; {_REMEDY}"
            )
        raise Unsupported(
            f"{name} computes another function in training than in evaluation, beyond dropout and batch normalization "
            f"as ONNX defines them, and its training is not exported; {_REMEDY}, or leave these layers out"
        )
    values = {each: variable.value.numpy() for each, variable in names.items()}
    proto = with_initial_values(with_marked_layers(proto, layers), name, list(inputs), values, ["logits"])
    proto = with_copied_batch(proto)
    stored = {value.name for value in proto.graph.initializer}
    if read := [each for each, variable in names.items() if id(variable) in changed and each in stored]:
        raise Unsupported(f"{name} reads {read[0]}, which its training changes; {_REMEDY}")
    trainable = {id(variable) for variable in model.trainable_variables}
    return Exported(
        proto=proto,
        trained=tuple(each for each, variable in names.items() if id(variable) in trainable),
        frozen=(),
        changes=(),
        exporter=f"tf2onnx {version}",
    )


def _converted(
    model: Any,
    name: str,
    inputs: Mapping[str, TensorSpec],
    layers: AbstractContextManager[None],
    *,
    training: bool,
) -> tuple[Any, set[int]]:
    """The model in a mode as an `onnx.ModelProto`, a function of its inputs and variables; and what it changes.

    Returns:
        The model, and the identities of the variables that a call changes.
    """
    variables, changed = model.variables, set[int]()
    specs = [
        tf.TensorSpec([None if isinstance(extent, str) else extent for extent in spec.shape], spec.dtype)
        for spec in inputs.values()
    ]
    specs += [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]

    def call(*tensors: Any) -> Any:
        import keras

        values = list(zip(variables, tensors[len(inputs) :], strict=True))
        with layers, keras.StatelessScope(state_mapping=values) as scope:
            output = model(*tensors[: len(inputs)], training=training)
        changed.update(id(variable) for variable, value in values if scope.get_current_value(variable) is not value)
        return output

    return _to_onnx(name, call, specs), changed


def _to_onnx(name: str, call: Callable[..., Any], specs: Sequence[Any]) -> Any:
    import onnx
    import tf2onnx

    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # of operators that it does not know
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function = tf.function(call, input_signature=specs, autograph=False)
            proto = tf2onnx.convert.from_function(
                function,
                input_signature=specs,
                opset=_OPSET,
                custom_op_handlers={"CheckNumerics": (_marked, [])},
                extra_opset=[onnx.helper.make_opsetid(DOMAIN, 1)],
            )[0]
            return in_order(proto)  # that of tf2onnx differs from call to call
    except Exception as error:
        raise Unsupported(f"tf2onnx does not convert {name}: {described(error)[:200]}; {_REMEDY}") from error
    finally:
        logging.disable(level)


def _marked(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert a `CheckNumerics` of TensorFlow: a mark, or the model's own."""
    message = node.get_attr_str("message")
    if not message.startswith(MARK):
        node.type = "Identity"
        return
    node.type, node.domain = "Mark", DOMAIN
    node.set_attr("mark", message.removeprefix(MARK))


def _nodes(proto: Any) -> list[tuple[Any, ...]]:
    """The computation of a model, whose nodes are in order, without the names of its values."""
    import onnx

    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    return [
        (
            node.op_type,
            *(attribute.SerializeToString(deterministic=True) for attribute in node.attribute),
            *map(number, (*node.input, "|", *node.output)),
        )
        for node in proto.graph.node
    ] + [(onnx.numpy_helper.to_array(value).tobytes(), *value.dims) for value in proto.graph.initializer]
