"""The array API on a graph under construction: all functions by their names in the standard.

References:
    Python array API standard, 2024.12, https://data-apis.org/array-api.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from deep5.core.tensors import numpy_dtype
from deep5.networks.tracing import analysis, creation, division, elementwise, places, reductions, shaping
from deep5.networks.tracing.promotion import kind_of
from deep5.networks.tracing.trace import Trace

__all__ = ["Namespace"]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **elementwise.FUNCTIONS,
    **division.FUNCTIONS,
    **analysis.FUNCTIONS,
    **reductions.FUNCTIONS,
    **shaping.FUNCTIONS,
    **places.FUNCTIONS,
    **creation.FUNCTIONS,
}


def _limits(given: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = given.dtype if hasattr(given, "trace") else numpy_dtype(given)
    return dtype


def _finfo(given: Any, /) -> Any:
    """The limits of a floating-point type, of an array or by itself."""
    dtype = _limits(given)
    if str(dtype) == "bfloat16":
        import ml_dtypes

        return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return np.finfo(dtype)


_KINDS: dict[str, Callable[[np.dtype[Any]], bool]] = {
    "bool": lambda dtype: dtype.kind == "b",
    "signed integer": lambda dtype: dtype.kind == "i",
    "unsigned integer": lambda dtype: dtype.kind == "u",
    "integral": lambda dtype: dtype.kind in "iu",
    "real floating": lambda dtype: kind_of(dtype) == "float",
    "complex floating": lambda dtype: dtype.kind == "c",
    "numeric": lambda dtype: kind_of(dtype) != "bool",
}


def _isdtype(dtype: Any, kind: Any, /) -> bool:
    """Whether an element type is of a kind, of one of several kinds, or equal to a type."""
    if isinstance(kind, tuple):
        return any(_isdtype(dtype, each) for each in kind)
    if isinstance(kind, str):
        return _KINDS[kind](np.dtype(dtype))
    return bool(np.dtype(dtype) == np.dtype(kind))


_FIXED: dict[str, Any] = {
    **{name: np.dtype(name) for name in ("bool", "float16", "float32", "float64")},
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "can_cast": lambda from_, to, /: bool(np.can_cast(_limits(from_), np.dtype(to))),
    "e": math.e,
    "finfo": _finfo,
    "iinfo": lambda given, /: np.iinfo(_limits(given)),
    "inf": math.inf,
    "isdtype": _isdtype,
    "nan": math.nan,
    "newaxis": None,
    "pi": math.pi,
}


class Namespace:
    """The functions, constants and element types by the standard's names.

    Args:
        trace: Receives the nodes.
    """

    __name__ = "deep5.networks.tracing.namespace"

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        if name in _FIXED:
            return _FIXED[name]
        if name == "bfloat16":
            return numpy_dtype(name)
        if name not in _FUNCTIONS:
            raise AttributeError(
                f"deep5's array namespace for ONNX has no {name!r}; allowed: {', '.join(dir(self))}", name=name
            )
        bound = functools.partial(_FUNCTIONS[name], self._trace)
        setattr(self, name, bound)
        return bound

    def __dir__(self) -> list[str]:
        return sorted({*_FUNCTIONS, *_FIXED, "bfloat16"})
