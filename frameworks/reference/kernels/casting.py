"""Conversion between all dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["cast"]

_FLOAT8 = (
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
)
_BITS = {ir.DataType.INT4: 4, ir.DataType.UINT4: 4, ir.DataType.INT2: 2, ir.DataType.UINT2: 2}
_SIGNED = (ir.DataType.INT4, ir.DataType.INT2)
# float8e8m0: the exponent bias, the largest code of a number, and the code of NaN.
_BIAS, _LARGEST, _NAN = 127, 254, 255


def cast(x: Array, *, kind: ir.DataType, saturate: bool = True, round_mode: str = "up") -> Array:
    """ONNX Cast.

    Args:
        x: Numbers, booleans, or strings as objects.
        kind: The dtype of the result.
        saturate: For a float8, whether values that are too large become the largest number; otherwise NaN, or infinity
            if the dtype has it.
        round_mode: For float8e8m0, which holds powers of two: `"up"`, `"down"` or `"nearest"`, ties up.

    Returns:
        x itself if it already has the dtype. Casts to 4 and 2 bits, and between integers, keep the lower bits.

    Raises:
        NetworkError: A string is not a number.
    """
    target: Any = kind.numpy()
    if x.dtype == target or (x.dtype.kind == "O" and kind == ir.DataType.STRING):
        return x
    if x.dtype.kind == "O":
        x = _read(x, whole=kind.is_integer())
    elif x.dtype.kind not in "biufc" and x.dtype != ml_dtypes.bfloat16:
        # ml_dtypes converts its own dtypes directly only to those of NumPy.
        x = x.astype(np.int8 if "int" in x.dtype.name else np.float32)
    if kind == ir.DataType.STRING:
        return _written(x)
    if kind in _FLOAT8:
        return _to_float8(x, target, saturate=saturate)
    if kind == ir.DataType.FLOAT8E8M0:
        return _to_power(x, saturate=saturate, round_mode=round_mode).view(target)
    if kind == ir.DataType.FLOAT4E2M1:
        return np.clip(x.astype(np.float32), -6, 6).astype(target)
    if kind in _BITS:
        return _to_few_bits(x, kind).astype(target)
    if kind == ir.DataType.BOOL:
        return np.asarray(x != 0)
    return np.asarray(x).astype(target, copy=False)


def _to_float8(x: Array, target: Any, *, saturate: bool) -> Array:
    wide = x if x.dtype.kind == "f" else x.astype(np.float32)
    if saturate:
        most = float(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
        wide = np.clip(wide, -most, most)
    return np.asarray(wide).astype(target)


def _to_power(x: Array, *, saturate: bool, round_mode: str) -> Array:
    """The bytes of float8e8m0, exponents of two. Zero and negative values become the smallest value, or NaN."""
    wide = x.astype(np.float64)
    mantissa, exponent = np.frexp(wide)  # in [0.5, 1)
    more = {"up": mantissa > 0.5, "down": np.zeros(x.shape, bool), "nearest": mantissa >= 0.75}[round_mode]
    code = exponent.astype(np.int64) - 1 + more + _BIAS
    code = np.where(wide > 0, np.where(np.isinf(wide), _NAN, code), -1)
    held = np.clip(code, 0, _LARGEST) if saturate else np.where((code < 0) | (code > _LARGEST), _NAN, code)
    return np.where(np.isnan(wide), _NAN, held).astype(np.uint8)


def _to_few_bits(x: Array, kind: ir.DataType) -> Array:
    """The lower bits, sign-extended, as int8."""
    bits = _BITS[kind]
    low = np.asarray(x.astype(np.int64) & ((1 << bits) - 1))
    if kind in _SIGNED:
        low = (low ^ (1 << (bits - 1))) - (1 << (bits - 1))
    return low.astype(np.int8)


def _read(x: Array, *, whole: bool) -> Array:
    try:
        numbers = [_number(text, whole=whole) for text in x.reshape(-1).tolist()]
    except (ValueError, OverflowError) as error:
        raise NetworkError(f"Cast: {error}; allowed: strings that are numbers, INF or NaN") from error
    return np.array(numbers, np.int64 if whole else np.float64).reshape(x.shape)


def _number(text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        return int(float(text)) if whole else float(text)


def _written(x: Array) -> Array:
    texts = x.astype(str).astype(object)
    if x.dtype.kind == "f":
        texts[np.isnan(x)] = "NaN"
        texts[x == np.inf] = "INF"
        texts[x == -np.inf] = "-INF"
    return texts
