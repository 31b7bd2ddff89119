"""The only entry point for ONNX models: read, check, upgrade, inline, fold, infer shapes, name nodes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from deep5.core.errors import Deep5Error, NetworkError, NetworkWarning
from deep5.networks.constants import FLOATS
from deep5.networks.diagnostics.failures import reported_by
from deep5.networks.diagnostics.refusals import check_by_onnx, complete_outputs, first_line, worded
from deep5.networks.onnx.axes import check_axes, check_widths
from deep5.networks.onnx.declarations import drop_stale_shapes, drop_unconfirmed_shapes
from deep5.networks.onnx.element_types import check_element_types
from deep5.networks.onnx.exported import forget_statements, stated_by_file
from deep5.networks.onnx.folding import fold_constants, lift_constants
from deep5.networks.onnx.known_branches import HiddenError, take_known_branches
from deep5.networks.onnx.learning_checks import check_learning
from deep5.networks.onnx.name_lists import DEFAULTS, FROZEN, listed_names, store_names
from deep5.networks.onnx.overrides import Overrides
from deep5.networks.onnx.parameters import Decision, decide
from deep5.networks.onnx.placing import lift_statistics, place
from deep5.networks.onnx.reading import NOT_UTF8, check_external, nodes_of, read_model
from deep5.networks.onnx.setting_values import check_constants
from deep5.networks.onnx.shapes import SMALL_BYTES, infer_shapes
from deep5.networks.onnx.stacked_rows import stack_rows
from deep5.networks.onnx.upgrading import upgraded

__all__ = ["Imported", "import_model"]

# Before this version of the format, every initial value had to be an input too.
_OPTIONAL_INPUTS = 4
# Dropped shapes in a warning.
_SHOWN = 6


class _NotConverted(NetworkError):
    """A node has no form in the present opset."""


class Imported(NamedTuple):
    """A model in the form that back-ends rely on, and what each tensor of its file is."""

    model: ir.Model
    decisions: tuple[Decision, ...]


def import_model(
    source: str | Path | onnx.ModelProto, overrides: Overrides = MappingProxyType({}), *, strict: bool = True
) -> Imported:
    """Read a model and bring it into the form that back-ends rely on.

    The result has opset 20 or newer. Functions are inlined, constants folded (`fold_constants`), shapes and dtypes
    inferred. Every node has a unique name. Initial values are not inputs. Weights are read from the file, and external
    ones mapped, only when requested.

    Args:
        source: An ONNX file, or a model in memory (copied).
        overrides: Which tensors of the file are trained, by name or pattern.
        strict: Whether each name in `overrides` must exist and be trainable.

    Raises:
        NetworkError: A missing file, invalid ONNX, versions that the installed onnx does not know, a cycle, an
            unknown operator, element types or an axis that an operator does not accept, weights that are missing,
            have another size, or are outside the model's folder, or a name in `overrides` that does not fit.
    """
    try:
        read = read_model(source)
        what = read[0]
        try:
            try:
                return _imported(*read, overrides, strict)
            except HiddenError:
                return _imported(*read_model(source), overrides, strict, again=True)
        except Deep5Error:
            raise
        except Exception as error:  # from onnx, onnx-ir and protobuf, for contradictory files
            raise NetworkError(f"{what} is not valid ONNX: {reported_by(error)}") from error
    except NetworkError as error:
        if (better := worded(error, source)) is error:
            raise
        raise better from error


def _imported(
    what: str,
    proto: onnx.ModelProto,
    folder: Path | None,
    overrides: Overrides,
    strict: bool,
    *,
    again: bool = False,  # the first time ONNX refused what an If hid
) -> Imported:
    stated, fed = stated_by_file(proto), _defaults(proto)
    order = {tensor.name: place for place, tensor in enumerate(proto.graph.initializer)}
    weights = [_tensor(what, tensor, folder) for tensor in _take_weights(what, proto)]
    check_widths(what, nodes_of(proto))
    model, dropped = _inferred(what, proto, weights)
    _restore_order(model.graph, order)
    if not again:
        _warn_of(what, dropped)
    check_element_types(model, what)
    check_axes(model, what)
    check_learning(model, what)
    passes.RemoveUnusedNodesPass()(model)
    tensors = decide(model, stated, overrides, str(model.producer_name or ""), strict=strict)
    # In old files, where every initial value is an input, constants are constants.
    kept = fed if proto.ir_version >= _OPTIONAL_INPUTS else frozenset()
    store_names(model, FROZEN, {*listed_names(model, FROZEN), *place(model, tensors, kept)})
    forget_statements(model)
    defaults = fed.union(listed_names(model, DEFAULTS))
    store_names(model, DEFAULTS, defaults.intersection(model.graph.initializers))
    fold_constants(model, what)
    take_known_branches(model, what, equal_ranks=not again)
    stack_rows(model, what)
    lift_constants(model)
    lift_statistics(model)
    check_constants(model, what)
    passes.RemoveUnusedNodesPass()(model)
    _name_nodes(model.graph)
    decisions = (decision for tensor in tensors for decision in tensor.decisions)
    initial = model.graph.initializers.items()
    kept = {name.rstrip("'") for name, value in initial if value.uses() or value.is_graph_output()}
    return Imported(model, tuple(_without_dropped(decision, kept) for decision in decisions))


def _without_dropped(decision: Decision, kept: Collection[str]) -> Decision:
    """The decision, or that its tensor is unused: only a branch that never runs, and was removed, reads it."""
    names = {decision.name.rstrip("'"), f"{decision.name}/parameter"}
    if decision.outcome != "trained" or not names.isdisjoint(kept):
        return decision
    return replace(decision, outcome="unused", reason=f"{decision.reason}, in a branch of an If that never runs")


def _inferred(what: str, proto: onnx.ModelProto, weights: Sequence[ir.TensorProtocol]) -> tuple[ir.Model, list[str]]:
    """The model in a new enough opset, with inferred shapes, and which declared ones it lacks as contradictory."""
    try:
        model, propagated = _inferred_as_declared(what, proto, weights)
    except _NotConverted:  # other declarations would not help
        raise
    except NetworkError:
        if not (dropped := drop_stale_shapes(proto) or drop_unconfirmed_shapes(proto)):
            raise
    else:
        if propagated or not (dropped := drop_stale_shapes(proto)):
            return model, []
    try:
        model = _inferred_as_declared(what, proto, weights)[0]
    except NetworkError:
        if not (more := drop_unconfirmed_shapes(proto)):
            raise
        dropped += more
        model = _inferred_as_declared(what, proto, weights)[0]
    return model, dropped  # the model fits without these shapes: one that is wrong in another way fails before


def _inferred_as_declared(
    what: str, proto: onnx.ModelProto, weights: Sequence[ir.TensorProtocol]
) -> tuple[ir.Model, bool]:
    complete_outputs(what, proto)
    try:
        check_by_onnx(proto)
        proto = upgraded(proto)
        _drop_defaults(proto.graph)
        model: ir.Model = ir.from_proto(proto)
    except Deep5Error as error:
        raise _NotConverted(f"{what}: {error}") from error
    except UnicodeDecodeError as error:  # in a string that no check before this reads
        raise NetworkError(f"{what} is not valid ONNX: {NOT_UTF8}") from error
    except Exception as error:  # onnx raises its own private classes
        raise NetworkError(f"{what} is not valid ONNX: {first_line(error)}") from error
    _put_weights(model, weights)
    return model, infer_shapes(model, what, proto)


def _warn_of(what: str, dropped: list[str]) -> None:
    if not (dropped := [line for line in dropped if line]):
        return
    shown = "; ".join(dropped[:_SHOWN]) + (f"; and {len(dropped) - _SHOWN} more" if len(dropped) > _SHOWN else "")
    said = f"{what} declares shapes that contradict what its nodes compute; deep5 ignores them: {shown}"
    warnings.warn(said, NetworkWarning, stacklevel=5)


def _defaults(proto: onnx.ModelProto) -> set[str]:
    """The initial values that are also inputs, which a caller may feed; in old files, where all are, the floats."""
    inputs = {value.name for value in proto.graph.input}
    return {
        tensor.name
        for tensor in proto.graph.initializer
        if tensor.name in inputs and (proto.ir_version >= _OPTIONAL_INPUTS or ir.DataType(tensor.data_type) in FLOATS)
    }


def _take_weights(what: str, proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Take large and external initial values out of the graph; they become inputs of the same shape."""
    graph = proto.graph
    name, count = max(Counter(tensor.name for tensor in graph.initializer).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise NetworkError(f"{what} is not valid ONNX: {count} initial values are named {name!r}; allowed: one")
    heavy = [tensor for tensor in graph.initializer if not _small(tensor)]
    light = [tensor for tensor in graph.initializer if _small(tensor)]
    del graph.initializer[:]
    graph.initializer.extend(light)
    inputs = {value.name: value for value in graph.input}
    for tensor in heavy:
        if tensor.name not in inputs:
            inputs[tensor.name] = graph.input.add(name=tensor.name)
    for tensor in (*heavy, *light):
        if (value := inputs.get(tensor.name)) is not None:  # what it is declared as may have symbolic dimensions
            value.type.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)))
    return heavy


def _small(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() <= SMALL_BYTES)


def _drop_defaults(graph: onnx.GraphProto) -> None:
    """Leave only one declaration of a value that is an input and an initial value: the latter."""
    initial = {tensor.name for tensor in graph.initializer}
    if initial and any(value.name in initial for value in graph.input):
        kept = [value for value in graph.input if value.name not in initial]
        del graph.input[:]
        graph.input.extend(kept)


def _tensor(what: str, proto: onnx.TensorProto, folder: Path | None) -> ir.TensorProtocol:
    """A large or external initial value, which is not read; an external one lies where the file says."""
    try:
        tensor: ir.TensorProtocol = ir.from_proto(proto)
    except Exception as error:  # an offset that is not a number
        given = ", ".join(f"{entry.key} {entry.value!r}" for entry in proto.external_data)
        raise NetworkError(
            f"{what}: the initial value {proto.name!r} lies at {given}; allowed: a location, and integers of "
            "at least 0 as offset and length"
        ) from error
    if isinstance(tensor, ir.ExternalTensor):
        check_external(what, tensor, folder)
        tensor.base_dir = str(folder)
    return tensor


def _put_weights(model: ir.Model, weights: Sequence[ir.TensorProtocol]) -> None:
    """Put the weights back; initial values are no longer inputs."""
    graph = model.graph
    values = {value.name: value for value in graph.inputs}
    small = list(graph.initializers.values())
    graph.initializers.clear()
    for tensor in weights:
        value = values[tensor.name]
        value.const_value = tensor
        graph.initializers[str(tensor.name)] = value
    graph.initializers.update((str(value.name), value) for value in small)
    fed = [value for value in graph.inputs if value.name not in graph.initializers]
    graph.inputs.clear()
    graph.inputs.extend(fed)


def _restore_order(graph: ir.Graph, order: Mapping[str, int]) -> None:
    """Put initial values in the order of the file, on which a network's hash depends; those made since come last."""
    values = sorted(graph.initializers.values(), key=lambda value: order.get(str(value.name), len(order)))
    graph.initializers.clear()
    graph.initializers.update((str(value.name), value) for value in values)


def _name_nodes(graph: ir.Graph) -> None:
    """Give every node a unique name, which depends only on its operator and position."""
    taken: set[str] = set()
    counts = Counter[str]()
    for node in graph.all_nodes():
        name = base = node.name or node.op_type
        while name in taken:
            counts[base] += 1
            name = f"{base}_{counts[base] + 1}"
        taken.add(name)
        node.name = name
