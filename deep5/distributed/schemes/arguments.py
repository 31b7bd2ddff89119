"""Checks of a scheme's arguments: its compression, and synchronized batch normalization."""

from __future__ import annotations

from typing import Any

from deep5.core.errors import UsageError, brief
from deep5.distributed.schemes.check import check_initialised

__all__ = ["check_compression", "check_synchronises"]


def check_compression(name: str, compression: Any) -> None:
    """Check that a scheme's argument is a compression.

    Args:
        name: Name of the scheme.
        compression: The argument.

    Raises:
        UsageError: It is not a compression, or its base was not initialized.
    """
    from deep5.distributed.compression import Compression

    if isinstance(compression, Compression):
        check_initialised(compression, Compression, "_scratch")
    elif not hasattr(compression, "all_reduce"):
        raise UsageError(
            f"{name}: got {brief(compression)} as compression; allowed: such as d5.TopKSparsification(0.01)"
        )


def check_synchronises(name: str, requested: object, *, allowed: bool) -> None:
    """Check a scheme's argument `synchronise_batch_norm`.

    Args:
        name: Name of the scheme.
        requested: The argument.
        allowed: Whether the ranks of the scheme step together.

    Raises:
        UsageError: It is not a bool, or it is true and the ranks of the scheme do not step together.
    """
    if not isinstance(requested, bool):
        raise UsageError(f"{name}: got synchronise_batch_norm={brief(requested)}; allowed: True or False")
    if requested and not allowed:
        raise UsageError(
            f"{name}: got synchronise_batch_norm=True; allowed: False, since its ranks do not all step at the same "
            "parameters; remedy: AllReduce, ParameterServer, or Hierarchical with every=1"
        )
