"""`PRIMITIVES`: what composites compute with on PyTorch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat.torch
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.operators_elementwise import converted
from deep5.frameworks.pytorch.operators_index import gathered, scattered, top_k
from deep5.frameworks.pytorch.operators_windows import around, convolution, transposed_convolution
from deep5.frameworks.pytorch.short import in_float32
from deep5.networks.kernels.recurrent import multiplied
from deep5.networks.window import Window

__all__ = ["NO_LABEL", "PRIMITIVES"]

NO_LABEL = -(2**62)
"""By default torch ignores the label -100; ONNX ignores only an explicit label."""

_FEW = 1 << 12


@functools.lru_cache(maxsize=64)
def _computed(function: Callable[..., Any], numbers: tuple[Any, ...], place: torch.device) -> Any:
    found = function(np, *numbers)
    if isinstance(found, tuple):
        return tuple(_on(each, place) for each in found)
    return _on(found, place)


def _on(array: np.ndarray, place: torch.device) -> Any:
    # A copy: views that NumPy broadcasts are not writable, of which torch warns.
    return torch.from_numpy(np.array(array, order="C")).to(place)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch is not type-checked
def _table(function: Callable[..., Any], numbers: tuple[Any, ...], place: torch.device) -> Any:
    return _computed(function, numbers, place)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch is not type-checked
def _host(function: Callable[..., Any], numbers: tuple[Any, ...]) -> Any:
    return function(*numbers)


class TorchPrimitives:
    """`Primitives` for PyTorch."""

    def __getattr__(self, name: str) -> Any:
        return getattr(array_api_compat.torch, name)

    # torch's own functions do less at a call than the standard's: they leave promotion out.
    # What stands here is also found sooner than by `__getattr__`: 0.08 instead of 0.6 microseconds.
    uint8, int32, int64, float32, float64 = torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64
    abs, ceil, exp, floor, sqrt = map(staticmethod, (torch.abs, torch.ceil, torch.exp, torch.floor, torch.sqrt))
    rsqrt, square = map(staticmethod, (torch.rsqrt, torch.square))
    argmax, argmin, logical_and = map(staticmethod, (torch.argmax, torch.argmin, torch.logical_and))
    cumulative_sum, cumulative_prod = map(staticmethod, (torch.cumsum, torch.cumprod))
    full_like, ones_like, zeros_like = map(staticmethod, (torch.full_like, torch.ones_like, torch.zeros_like))
    matmul, moveaxis, stack = map(staticmethod, (torch.matmul, torch.movedim, torch.stack))
    add, equal, greater, greater_equal = map(staticmethod, (torch.add, torch.eq, torch.gt, torch.ge))
    less, less_equal, maximum, minimum = map(staticmethod, (torch.lt, torch.le, torch.maximum, torch.minimum))
    bitwise_and, bitwise_or, bitwise_xor = map(staticmethod, (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor))
    bitwise_invert, fmod, where = map(staticmethod, (torch.bitwise_not, torch.fmod, torch.where))
    max, mean, min, sum = map(staticmethod, (torch.amax, torch.mean, torch.amin, torch.sum))
    logsumexp = staticmethod(torch.logsumexp)
    erf, relu, elu, sigmoid, silu = map(staticmethod, (torch.erf, torch.relu, F.elu, torch.sigmoid, F.silu))

    softmax, log_softmax = map(staticmethod, (torch.softmax, torch.log_softmax))
    reshape, permute_dims, squeeze = map(staticmethod, (torch.reshape, torch.permute, torch.squeeze))
    expand_dims, broadcast_to, tile = map(staticmethod, (torch.unsqueeze, torch.broadcast_to, torch.tile))
    concat, full = map(staticmethod, (torch.concat, torch.full))
    split = staticmethod(torch.split)
    normal_distribution = staticmethod(torch.special.ndtr)

    def prod(self, x: Any, *, axis: tuple[int, ...], keepdims: bool, dtype: Any) -> Any:
        for at in sorted(axis, reverse=True):  # torch supports one axis per call
            x = x.prod(at, keepdims, dtype=dtype)
        return x

    def take(self, x: Any, indices: Any, *, axis: int) -> Any:
        return x.index_select(axis, indices)

    def table(self, function: Callable[..., Any], *numbers: Any, like: Any) -> Any:
        return _table(function, numbers, getattr(like, "device", like))

    def host(self, function: Callable[..., Any], *numbers: Any) -> Any:
        return _host(function, numbers)

    def early(self, function: Callable[..., Any], *arrays: Any) -> Any:
        return function(*arrays)

    def size_of(self, x: Any) -> int:
        return max(int(x.max()), 1) if x.numel() else 1

    def number(self, x: Any) -> Any:
        return x.item()

    def blank(self, shape: tuple[int, ...], like: Any) -> Any:
        return like.new_zeros(shape)

    def wide(self, x: Any) -> Any:
        return x if x.dtype in (torch.float32, torch.float64) else x.float()

    def limits(self, dtype: Any) -> tuple[float, float]:
        if dtype.is_floating_point:
            return torch.finfo(dtype).min, torch.finfo(dtype).max
        return torch.iinfo(dtype).min, torch.iinfo(dtype).max

    def is_floating(self, dtype: Any) -> bool:
        return bool(dtype.is_floating_point)

    def astype(self, x: Any, dtype: Any) -> Any:
        return converted(x, dtype)

    def asarray(self, value: Any, *, dtype: Any = None) -> Any:
        return torch.as_tensor(value, dtype=dtype)

    def held(self, x: Any) -> Any:
        return x.detach()

    def clamp(self, x: Any, low: Any = None, high: Any = None) -> Any:
        if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor):  # all numbers or all tensors
            low, high = (None if each is None else torch.as_tensor(each, dtype=x.dtype) for each in (low, high))
        return x if low is None and high is None else torch.clamp(x, low, high)

    @staticmethod
    def softplus(x: Any) -> Any:
        # Above the threshold the result is the argument itself, which is exact there in float64, too.
        return F.softplus(x, 1.0, 40.0)

    def complex_of(self, real: Any, imaginary: Any) -> Any:
        return torch.complex(real, imaginary)

    def parts_of(self, x: Any) -> tuple[Any, Any]:
        return x.real, x.imag

    def transformed(self, x: Any, count: Any, kind: str) -> Any:
        return getattr(torch.fft, kind)(x, count)

    def bits(self, x: Any, dtype: Any) -> Any:
        return x.clone() if x.dtype == dtype else x.view(dtype)

    def narrowed(self, x: Any, dtype: Any, saturate: bool) -> Any:
        return converted(x, dtype, saturate)

    def einsum(self, equation: str, *operands: Any) -> Any:
        if operands[0].dtype == torch.float16 and operands[0].device.type == "cpu":
            return in_float32(lambda *wide: torch.einsum(equation, *wide))(*operands)
        return torch.einsum(equation, *operands)

    def integer_convolution(self, x: Any, weight: Any, window: Window, group: int) -> Any:
        image, kernel = x.movedim(-1, 1).double(), weight.double()  # exact, unlike float32
        y = convolution(image, kernel, window=window, group=group)
        return y.round().to(torch.int32).movedim(1, -1)

    transposed_convolution = staticmethod(transposed_convolution)

    def pad(self, x: Any, pads: Sequence[tuple[int, int]], fill: Any) -> Any:
        flat = around(pads)
        if isinstance(fill, torch.Tensor):
            inside = F.pad(torch.ones_like(x, dtype=torch.uint8), flat).bool()
            return torch.where(inside, self.pad(x, pads, 0), fill.reshape(()).to(x.dtype))
        return F.pad(x.byte(), flat, value=fill).bool() if x.dtype == torch.bool else F.pad(x, flat, value=fill)

    def sizes(self, numbers: Any, place: Any) -> Any:
        return torch.tensor(numbers, dtype=torch.int64, device=place)

    gathered, select = map(staticmethod, (gathered, torch.select))

    def picked(self, x: Any, places: tuple[Any, ...]) -> Any:
        return x[tuple(place.long() for place in places)]

    def placed(self, x: Any, places: tuple[Any, ...], updates: Any, how: str) -> Any:
        places, count = tuple(place.long() for place in places), len(places)
        # For few elements, `index_add` takes longer.
        if how == "none" or (how == "add" and (count > 1 or updates.numel() < _FEW)):
            return x.index_put(places, updates, accumulate=how == "add")
        if count == 1:
            numbers = torch.where(places[0] < 0, places[0] + x.shape[0], places[0]).reshape(-1)
        else:
            numbers = torch.arange(math.prod(x.shape[:count]), device=x.device).reshape(x.shape[:count])
            numbers = numbers[places].reshape(-1)
        rows, given = (value.reshape(-1, *x.shape[count:]) for value in (x, updates))
        if how == "add":
            return rows.index_add(0, numbers, given).reshape(x.shape)
        numbers = numbers.reshape(-1, *[1] * (rows.ndim - 1)).expand(given.shape)
        return scattered(rows, 0, numbers, given, how).reshape(x.shape)

    def found(self, x: Any) -> Any:
        return x.nonzero()

    def classes(self, x: Any, axis: int) -> Any:
        _, numbers, counts = torch.unique(x, return_inverse=True, return_counts=True, dim=axis)
        places = torch.arange(numbers.numel(), device=x.device)
        return counts.scatter_reduce(0, numbers, places, "amin", include_self=False), numbers, counts

    top_k = staticmethod(top_k)

    def lesser(self, size: Any, other: Any) -> Any:
        return min(size, other)

    def loop(self, condition: Callable[..., Any], body: Callable[..., Any], state: tuple[Any, ...]) -> Any:
        while bool(condition(*state)):
            state = body(*state)
        return state

    def cross_entropy(self, x: Any, label: Any) -> Any:
        return F.cross_entropy(x.movedim(-1, 1), label.long(), ignore_index=NO_LABEL, reduction="none")

    def likelihood(self, x: Any, label: Any, checked: bool) -> Any:
        return F.nll_loss(x.movedim(-1, 1), label.long(), ignore_index=NO_LABEL, reduction="none")

    def normal(self, stream: Any, shape: Any, kind: Any, place: Any, mean: float, scale: float) -> Any:
        return torch.empty(shape, dtype=kind, device=place).normal_(mean, scale, generator=stream)

    def uniform(self, stream: Any, shape: Any, kind: Any, place: Any, low: float, high: float) -> Any:
        return torch.empty(shape, dtype=kind, device=place).uniform_(low, high, generator=stream)

    def coins(self, stream: Any, x: Any) -> Any:
        return torch.bernoulli(x, generator=stream)

    def draws(self, stream: Any, logits: Any, count: int) -> Any:
        return torch.multinomial(torch.softmax(logits.float(), 1), count, replacement=True, generator=stream)

    def scan(
        self, step: Callable[..., Any], states: tuple[Any, ...], rows: tuple[Any, ...], back: bool
    ) -> tuple[Any, Any]:
        kept, order = [], slice(None, None, -1) if back else slice(None)
        for row in list(zip(*(each.unbind(0) for each in rows), strict=True))[order]:
            states = step(states, row)
            kept.append(states[0])
        return states, torch.stack(kept[order]) if kept else states[0].new_zeros((0, *states[0].shape))

    recurrent = multiplied


PRIMITIVES = TorchPrimitives()
