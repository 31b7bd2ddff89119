"""Names of a network's inputs and outputs, checked before an epoch is trained for nothing."""

from __future__ import annotations

from typing import Any

from deep5.core.errors import UnknownName

__all__ = ["check_class_names"]


def check_class_names(network: Any, logits: str, label: str) -> None:
    """Whether a network has what a metric of classes reads.

    Args:
        network: Its inputs and outputs by name.
        logits: Name of the output that holds a number a class.
        label: Name of the input that holds the true class.

    Raises:
        UnknownName: It has no such output or input.
    """
    for kind, name, there in (("output", logits, network.outputs), ("input", label, network.inputs)):
        if name not in there:
            raise UnknownName(kind, name, there)
