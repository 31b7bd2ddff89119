"""XLA's thread count on the host: fixed for the process when its back-end starts."""

from __future__ import annotations

import functools
import os
import re

import jax
import jax.numpy as jnp

from deep5.core.errors import UsageError

__all__ = ["count_threads", "start_with_threads"]

# XLA's CPU client reads it at start. `--xla_cpu_multi_thread_eigen=false` no longer limits anything (jax 0.10), and JAX
# itself has no such setting.
_VARIABLE = "PJRT_NPROC"


@functools.cache
def count_threads() -> int:
    """The compiler's number of threads per operator: into how many parts it splits a large one.

    Starts the back-end if it has not started.
    """
    large = jax.ShapeDtypeStruct((1 << 16, 1 << 10), jnp.float32)
    with jax.default_device(jax.devices("cpu")[0]):
        text = jax.jit(jnp.sin).trace(large).lower().compile().as_text() or ""
    parts = re.search(r'outer_dimension_partitions":\["(\d+)"', text)
    return int(parts[1]) if parts else 1


def start_with_threads(threads: int) -> None:
    """Start the back-end with this number of threads.

    Args:
        threads: At least 1; capped at the number of CPUs.

    Raises:
        UsageError: The back-end has started with another number.
    """
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(threads)
    try:
        jax.devices("cpu")
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
    if count_threads() != min(threads, len(os.sched_getaffinity(0))):
        raise UsageError(
            f"got {threads} threads, but JAX has started with {count_threads()} in this process and cannot change "
            f"that; remedy: set the threads before anything uses JAX, or start the process with {_VARIABLE}={threads}"
        )
