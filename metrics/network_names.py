"""Check the names of a network's inputs and outputs before training starts."""

from __future__ import annotations

from typing import Any

from deep5.core.errors import UnknownName

__all__ = ["check_class_names"]


def check_class_names(network: Any, logits: str, label: str) -> None:
    """Check that a network has the output and input that a classification metric reads.

    Args:
        network: The network to check.
        logits: Name of the output with one value per class.
        label: Name of the input with the true class.

    Raises:
        UnknownName: It has no such output or input.
    """
    for kind, name, there in (("output", logits, network.outputs), ("input", label, network.inputs)):
        if name not in there:
            raise UnknownName(kind, name, there)
