"""`recorded_step`: a step of a plain JAX loop, recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from deep5.core.errors import UsageError
from deep5.recorder.recorder import Recorder

__all__ = ["recorded_step"]


def _last(result: Any) -> Any:
    return result[-1] if isinstance(result, (tuple, list)) else result


def recorded_step(step: Callable[..., Any], run: Recorder, *, loss: Callable[[Any], Any] = _last) -> Callable[..., Any]:
    """A training step that records itself at every call, in an epoch of a recorder.

    Its batch size is the first dimension of the first array in its last argument. JAX computes asynchronously: the loss
    is kept unread, and only where `step_latency` is measured, the call waits for everything that the step returned.

    Args:
        step: The step, such as a function that `jax.jit` returned.
        run: The recorder.
        loss: From what the step returns, its loss; by default, the last of several values.

    Returns:
        A function of the same arguments and values.

    Raises:
        UsageError: At a call: the last argument has no array with a first dimension.
    """

    @wraps(step)
    def recorded(*arguments: Any, **others: Any) -> Any:
        leaves = jax.tree_util.tree_leaves(arguments[-1:])
        shape = getattr(leaves[0], "shape", ()) if leaves else ()
        if not shape:
            raise UsageError(
                "the last argument of a recorded step has no array with a first dimension, which is its batch size; "
                "allowed: step(…, batch)"
            )
        with run.step(batch_size=int(shape[0])):
            result = step(*arguments, **others)
            run.log(loss=loss(result))
            if run.waits:
                run.wait(result)
        return result

    return recorded
