"""`PRIMITIVES`: what composites compute with on JAX."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from deep5.frameworks.jax.kernels.host import host_array
from deep5.frameworks.jax.operators_math import FEW_BITS, absolute, few_bits
from deep5.networks.window import Window

__all__ = ["PRIMITIVES"]


_FEW = {str(kind.numpy()) for kind in FEW_BITS}


@functools.lru_cache(maxsize=64)
def _table(function: Callable[..., Any], numbers: tuple[Any, ...]) -> Any:
    return function(np, *numbers)


class JaxPrimitives:
    """`Primitives` for JAX."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    erf, fmod, sigmoid, softplus = map(staticmethod, (lax.erf, jnp.fmod, jax.nn.sigmoid, jax.nn.softplus))
    cumulative_sum, cumulative_prod = map(staticmethod, (jnp.cumsum, jnp.cumprod))
    abs = staticmethod(absolute)
    relu, elu, silu = map(staticmethod, (jax.nn.relu, jax.nn.elu, jax.nn.silu))

    def normal_distribution(self, x: Any) -> Any:
        # 1 + erf would cancel for negative numbers.
        return 0.5 * lax.erfc(x * -math.sqrt(0.5))

    def table(self, function: Callable[..., Any], *numbers: Any, like: Any) -> Any:
        return _table(function, numbers)

    def host(self, function: Callable[..., Any], *numbers: Any) -> Any:
        return function(*numbers)

    def take(self, x: Any, indices: Any, *, axis: int) -> Any:
        # Composites take existing elements only: the default mode would compare every index with the size.
        return jnp.take(x, indices, axis=axis, mode="clip")

    def matmul(self, x: Any, y: Any) -> Any:
        return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)

    def size_of(self, x: Any) -> int:
        return int(host_array(x).max(initial=1))

    def blank(self, shape: tuple[int, ...], like: Any) -> Any:
        return jnp.zeros(shape, like.dtype)

    def wide(self, x: Any) -> Any:
        return x.astype(jnp.promote_types(x.dtype, "float32"))

    def limits(self, dtype: Any) -> tuple[float, float]:
        info = jnp.finfo(dtype) if self.is_floating(dtype) else jnp.iinfo(dtype)
        return info.min, info.max

    def is_floating(self, dtype: Any) -> bool:
        return bool(jnp.issubdtype(dtype, jnp.floating))

    def held(self, x: Any) -> Any:
        return lax.stop_gradient(x)

    def clamp(self, x: Any, low: Any = None, high: Any = None) -> Any:
        # Not jnp.clip, whose gradient is one half at the bounds.
        x = x if low is None else jnp.where(x < low, low, x)
        return x if high is None else jnp.where(x > high, high, x)

    def complex_of(self, real: Any, imaginary: Any) -> Any:
        return lax.complex(real, imaginary)

    def parts_of(self, x: Any) -> tuple[Any, Any]:
        return jnp.real(x), jnp.imag(x)

    def transformed(self, x: Any, count: Any, kind: str) -> Any:
        return getattr(jnp.fft, kind)(x, count)

    def bits(self, x: Any, dtype: Any) -> Any:
        return lax.bitcast_convert_type(x, dtype)

    def narrowed(self, x: Any, dtype: Any, saturate: bool) -> Any:
        return few_bits(x, dtype, saturate) if np.dtype(dtype).name in _FEW else x.astype(dtype)

    def integer_convolution(self, x: Any, weight: Any, window: Window, group: int) -> Any:
        _, begins, ends = window.fit(x.shape[1:-1], weight.shape[2:])
        axes = "XYZ"[: x.ndim - 2]
        return lax.conv_general_dilated(
            x,
            weight,
            window.strides,
            tuple(zip(begins, ends, strict=True)),
            rhs_dilation=window.dilations,
            dimension_numbers=(f"N{axes}C", f"OI{axes}", f"N{axes}C"),
            feature_group_count=group,
        )

    def put(self, x: Any, rows: Any, updates: Any, how: str) -> Any:
        return getattr(x.at[rows], "set" if how == "none" else how)(updates)


PRIMITIVES = JaxPrimitives()
