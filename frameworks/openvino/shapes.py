"""Whether a network fits the shapes of its inputs, which a model that OpenVINO compiled for any extents does not ask.

Its processor plugin finds some misfits while it runs and not others; after one it may refuse what fits, or crash. So
whatever has these extents for the first time goes through the shape inference of OpenVINO's own operators.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from deep5.core.errors import NetworkError

__all__ = ["check_shapes", "explanation"]

# How OpenVINO names a node that refuses its inputs: operator, inputs, name, reason.
_NODE = re.compile(r"While validating node '\w+::(\w+) .*?\((.*)\) -> .*' with friendly_name '(.*?)': (.*)", re.DOTALL)
_SHAPE = re.compile(r"\]:\w+(\[[^\]]*\])")


def check_shapes(model: Any, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse inputs of shapes that the nodes of a network do not take.

    What depends on values, not on shapes alone, stays open: it is found when the node runs.

    Args:
        model: The `openvino.Model` that was compiled; it is not changed.
        name: Of the network, for the message.
        shapes: Of all inputs that the model reads besides parameters.

    Raises:
        NetworkError: A node does not take the shapes that follow from these.
    """
    try:
        model.clone().reshape({given: list(shape) for given, shape in shapes.items()})
    except Exception as error:  # OpenVINO raises RuntimeError and its own private classes
        inputs = ", ".join(f"{given!r} of shape {list(shape)}" for given, shape in shapes.items())
        told = explanation(error)
        if found := _NODE.search(told):
            operator, operands, node, reason = found.groups()
            told = f"the node {node!r} ({operator}) got {' and '.join(_SHAPE.findall(operands))}: {reason}"
        raise NetworkError(
            f"openvino cannot run the network {name!r} on {inputs}: {told.rstrip('.')}; allowed: shapes that fit every "
            "node"
        ) from error


def explanation(error: Exception) -> str:
    """What an error of OpenVINO says, without its places in source files."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("Exception from", "Check ", "To facilitate"))]
    return " ".join(told) or type(error).__name__
