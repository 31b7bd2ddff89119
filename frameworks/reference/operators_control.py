"""Operators with subgraphs, and on lists and optional values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.frameworks.reference.kernels import control, sequence
from deep5.frameworks.reference.table import Call, Operator, Site, by_position, configured, plain
from deep5.networks.transforms.control_flow import never_stops

__all__ = ["OPERATORS"]


def _outputs(site: Site, function: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    """The function with only the results that are read; a single one is not a tuple."""
    if site.outputs == 1:
        return lambda *values: function(*values)[0]
    return lambda *values: tuple(function(*values)[: site.outputs])


def _if(site: Site) -> Call:
    then, other = (site.nested(site.attribute(name)) for name in ("then_branch", "else_branch"))
    return Call(_outputs(site, partial(control.branch, then, other)), (0,), captures=True)


def _empty(value: ir.Value) -> np.ndarray:
    """The stacked results of zero steps: unknown sizes are 0."""
    dtype = np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()
    extents = [extent if isinstance(extent, int) else 0 for extent in value.shape or ()]
    return np.empty((0, *extents), dtype)


def _loop(site: Site) -> Call:
    body: ir.Graph = site.attribute("body")
    given, state = site.given, len(body.inputs) - 2
    function = partial(
        control.loop,
        site.nested(body),
        state=state,
        empty=[_empty(value) for value in body.outputs[1 + state :]],
        counted=never_stops(site.node),
    )
    places = tuple(given.index(position) if position in given else None for position in range(2 + state))
    return Call(_outputs(site, partial(control.placed, function, places, len(given))), given, captures=True)


def _scan(site: Site) -> Call:
    body: ir.Graph = site.attribute("body")
    scanned = site.attribute("num_scan_inputs")
    state = len(body.inputs) - scanned
    stacked = len(body.outputs) - state
    function = partial(
        control.scan,
        site.nested(body),
        state=state,
        axes=site.attribute("scan_input_axes") or (0,) * scanned,
        backward=site.attribute("scan_input_directions") or (0,) * scanned,
        into=site.attribute("scan_output_axes") or (0,) * stacked,
        reverse=site.attribute("scan_output_directions") or (0,) * stacked,
        empty=[_empty(value) for value in body.outputs[state:]],
    )
    return Call(_outputs(site, function), site.given, captures=True)


def _map(site: Site) -> Call:
    count = len(site.node.inputs)
    return Call(
        _outputs(site, partial(control.over_lists, site.nested(site.attribute("body")), count)), site.given, True
    )


def _construct(site: Site) -> Call:
    return Call(lambda *values: list(values), site.given)


def _insert(site: Site) -> Call:
    return Call(by_position(sequence.insert, site.given), site.given)


def _split(site: Site) -> Call:
    function = partial(sequence.split, axis=site.attribute("axis", 0), keepdims=bool(site.attribute("keepdims", 1)))
    return Call(by_position(function, site.given), site.given)


def _none(site: Site) -> Call:
    """An empty Optional, or one of its input."""
    return Call((lambda: None) if not site.given else (lambda value: value), site.given)


def _has(site: Site) -> Call:
    return Call(lambda value=None: np.array(value is not None), site.given)


_TABLE = {
    "ConcatFromSequence": configured(sequence.concatenate, axis=0, new_axis=0),
    "If": Operator(_if, keeps=True),
    "Loop": Operator(_loop, keeps=True),
    "Optional": Operator(_none, keeps=True),
    "OptionalGetElement": plain(sequence.held)._replace(keeps=True),
    "OptionalHasElement": Operator(_has),
    "Scan": Operator(_scan, keeps=True),
    "SequenceAt": plain(sequence.element)._replace(keeps=True),
    "SequenceConstruct": Operator(_construct, keeps=True),
    "SequenceEmpty": plain(list),
    "SequenceErase": Operator(lambda site: Call(by_position(sequence.erase, site.given), site.given), keeps=True),
    "SequenceInsert": Operator(_insert, keeps=True),
    "SequenceLength": plain(lambda values: np.array(len(values), np.int64)),
    "SequenceMap": Operator(_map, keeps=True),
    "SplitToSequence": Operator(_split, keeps=True),
}
# They move values, or run graphs whose own nodes round: short floats pass unchanged.
OPERATORS: dict[str, Operator] = {name: operator._replace(exact=True) for name, operator in _TABLE.items()}
