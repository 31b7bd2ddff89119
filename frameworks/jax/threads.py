"""How many threads XLA computes with on the host: fixed when its back-end starts, once a process."""

from __future__ import annotations

import functools
import os
import re

import jax
import jax.numpy as jnp

from deep5.core.errors import UsageError

__all__ = ["count_threads", "start_with_threads"]

# What the processor's client reads when it starts. `--xla_cpu_multi_thread_eigen=false` no longer limits anything
# (jax 0.10), and there is no setting in JAX itself.
_VARIABLE = "PJRT_NPROC"


@functools.cache
def count_threads() -> int:
    """Threads that an operator may use, as the compiler has it: into how many parts it cuts a large one.

    Starts the back-end where that has not started.
    """
    large = jax.ShapeDtypeStruct((1 << 16, 1 << 10), jnp.float32)
    with jax.default_device(jax.devices("cpu")[0]):
        text = jax.jit(jnp.sin).trace(large).lower().compile().as_text() or ""
    parts = re.search(r'outer_dimension_partitions":\["(\d+)"', text)
    return int(parts[1]) if parts else 1


def start_with_threads(threads: int) -> None:
    """Start the back-end with this many threads.

    Args:
        threads: At least 1; more than there are processors count as so many.

    Raises:
        UsageError: It has started with another number.
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
