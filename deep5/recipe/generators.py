"""The global generators of random numbers that a user's own code draws from, seeded while it runs."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from deep5.core.errors import RecipeError

__all__ = ["one_at_a_time", "seeded_call"]

Made = TypeVar("Made")

# Ranks that are threads share the generators.
_ONE = threading.RLock()
_LONGEST_S = 3600.0
_LIBRARIES = ("torch", "tensorflow", "keras")


def seeded_call(seed: int, call: Callable[[], Made]) -> Made:
    """Call a function with the global generators seeded: Python's, NumPy's, PyTorch's, TensorFlow's and Keras's.

    Their states are restored afterwards, except TensorFlow's, which has no public way to read its seed. If the function
    loads one of the libraries, it is called once more, because it may have drawn before the library could be seeded.

    Args:
        seed: The seed.
        call: The function.

    Raises:
        RecipeError: Another thread has been creating a network for an hour.
    """
    with one_at_a_time():
        before = _loaded()
        with _seeded(seed):
            made = call()
        if _loaded() != before:
            del made
            with _seeded(seed):
                made = call()
        return made


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one thread create a network at a time.

    Raises:
        RecipeError: Another thread has been creating one for an hour.
    """
    if not _ONE.acquire(timeout=_LONGEST_S):
        raise RecipeError(f"another thread has been creating a network for {_LONGEST_S:g} s; allowed: one at a time")
    try:
        yield
    finally:
        _ONE.release()


def _loaded() -> tuple[str, ...]:
    return tuple(name for name in _LIBRARIES if name in sys.modules)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    import numpy as np

    small = seed % 2**32  # NumPy's and Keras's limit
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - what users draw from
    torch: Any = sys.modules.get("torch")
    cuda = torch is not None and torch.cuda.is_initialized()
    torch_states = (torch.get_rng_state(), torch.cuda.get_rng_state_all() if cuda else []) if torch else None
    if (keras := sys.modules.get("keras")) is not None:
        keras.utils.set_random_seed(small)
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.random.set_seed(small)
    random.seed(seed)
    np.random.seed(small)  # noqa: NPY002
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch is not None and torch_states is not None:
            torch.set_rng_state(torch_states[0])
            if torch_states[1]:
                torch.cuda.set_rng_state_all(torch_states[1])
