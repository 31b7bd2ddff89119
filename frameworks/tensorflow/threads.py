"""TensorFlow's thread counts: set before its runtime starts, and read back."""

from __future__ import annotations

import os

import tensorflow as tf

from deep5.core.errors import UsageError

__all__ = ["inter_threads", "intra_threads", "set_threads"]


def intra_threads() -> int:
    """Number of threads within an operator."""
    return _effective(tf.config.threading.get_intra_op_parallelism_threads(), "TF_NUM_INTRAOP_THREADS")


def inter_threads() -> int:
    """Number of operators that may run at the same time."""
    return _effective(tf.config.threading.get_inter_op_parallelism_threads(), "TF_NUM_INTEROP_THREADS")


def set_threads(threads: int) -> None:
    """Set the threads within an operator; operators then run one after another, in the same order at every step.

    Args:
        threads: At least 1.

    Raises:
        UsageError: The runtime has started with another number.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError as error:
        # A started runtime cannot change it, but may already have the requested number.
        if intra_threads() != threads:
            raise UsageError(
                f"got {threads} threads for tensorflow, which has started with {intra_threads()} and cannot change; "
                f"allowed: {intra_threads()} in this process; remedy: set them before the first executor is made, or "
                f"start Python with TF_NUM_INTRAOP_THREADS={threads}"
            ) from error


def _effective(configured: int, variable: str) -> int:
    """The effective value of a setting: 0 means the environment's, or else one per available core."""
    if configured > 0:
        return int(configured)
    given = os.environ.get(variable, "")
    return int(given) if given.isdecimal() and int(given) > 0 else len(os.sched_getaffinity(0))
