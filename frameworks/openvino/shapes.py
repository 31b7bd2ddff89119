"""Whether a network accepts its inputs' shapes, which OpenVINO does not check for dynamic shapes.

The CPU plugin detects only some mismatches at run time; after one it may reject valid inputs, or crash. So new input
shapes first go through OpenVINO's shape inference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from deep5.core.errors import NetworkError

__all__ = ["check_shapes", "explanation"]

# OpenVINO's message for a node that rejects its inputs: operator, inputs, name, reason.
_NODE = re.compile(r"While validating node '\w+::(\w+) .*?\((.*)\) -> .*' with friendly_name '(.*?)': (.*)", re.DOTALL)
_SHAPE = re.compile(r"\]:\w+(\[[^\]]*\])")


def check_shapes(model: Any, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Reject inputs whose shapes the nodes of a network do not accept.

    Errors that also depend on values are not found here, but when the node runs.

    Args:
        model: The compiled `openvino.Model`; it is not changed.
        name: The network's name, for the message.
        shapes: The shapes of all inputs that the model reads besides parameters.

    Raises:
        NetworkError: A node does not accept the shapes that follow from these.
    """
    try:
        model.clone().reshape({given: list(shape) for given, shape in shapes.items()})
    except Exception as error:  # OpenVINO raises RuntimeError and private classes
        inputs = ", ".join(f"{given!r} of shape {list(shape)}" for given, shape in shapes.items())
        reported = explanation(error)
        if found := _NODE.search(reported):
            operator, operands, node, reason = found.groups()
            reported = f"the node {node!r} ({operator}) got {' and '.join(_SHAPE.findall(operands))}: {reason}"
        raise NetworkError(
            f"openvino cannot run the network {name!r} on {inputs}: {reported.rstrip('.')}; allowed: shapes that fit "
            "every node"
        ) from error


def explanation(error: Exception) -> str:
    """The message of an OpenVINO error without source locations."""
    lines = [line.strip() for line in str(error).splitlines()]
    reported = [line for line in lines if line and not line.startswith(("Exception from", "Check ", "To facilitate"))]
    return " ".join(reported) or type(error).__name__
