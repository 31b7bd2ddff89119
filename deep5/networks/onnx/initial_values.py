"""Initial values of a model, read one at a time, each only when requested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError

__all__ = ["InitialValues", "initial_value"]


def initial_value(model: ir.Model, name: str) -> np.ndarray:
    """An initial value of a model, as a fresh, writable array.

    Raises:
        NetworkError: The name is unknown, or the value cannot be read.
    """
    value = model.graph.initializers.get(name)
    if value is None or value.const_value is None:
        raise NetworkError(f"no initial value {name!r}; allowed: {', '.join(model.graph.initializers)}")
    try:
        return np.array(value.const_value.numpy(), order="C")
    except (OSError, ValueError, MemoryError) as error:
        raise NetworkError(
            f"the initial value {name!r} of {value.const_value.nbytes} bytes cannot be read: {error}; remedy: look "
            "at the file that holds it"
        ) from error


class InitialValues(Mapping[str, np.ndarray]):
    """A mapping that reads, or draws, a value on each access.

    Args:
        read: Returns the value of a name as a fresh array.
        names: The names in order.
    """

    def __init__(self, read: Callable[[str], np.ndarray], names: Iterable[str]) -> None:
        self._read, self._names = read, dict.fromkeys(names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __repr__(self) -> str:
        return f"InitialValues({list(self._names)})"
