"""Normalizations other than batch and layer normalization, and norms."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.composites import on_torch
from deep5.frameworks.pytorch.table import kernel
from deep5.networks.kernels.normalizing import check_norm
from deep5.networks.kernels.reducing import check_space, in_float, reduced
from deep5.networks.kernels.table import Composite

__all__: list[str] = []

_GROUP = "16 and 27 times at (4, 8, 8, 8), 9.8 and 9.7 at (16, 64, 56, 56)"
_INSTANCE = "3.6 and 1.3 times at (4, 8, 8, 8), 2.7 and 8.3 at (16, 64, 56, 56)"
_LP = "1.8 and 1.4 times at (8, 16), 3.8 and 1.4 at (2048, 512)"
_NORM = "2.0 times at (8, 16), 1.9 and 0.7 at (64, 32, 28, 28)"
_GLOBAL = "2.2 and 1.6 times at (2, 3, 5, 5), 3.7 and 1.4 at (16, 64, 28, 28)"
_RMS = "1.7 and 1.3 times at (8, 64), 0.9 and 1.6 at (2048, 512)"


@kernel("InstanceNormalization", override=_INSTANCE)
def _instance_normalization(x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5) -> Any:
    if x.shape[0] and x[0, 0].numel() > 1:
        return F.instance_norm(x, None, None, scale, bias, True, 0.0, epsilon)
    axes = tuple(range(2, x.ndim))  # torch rejects a single element
    shape = (-1, *[1] * (x.ndim - 2))
    middle = x - x.mean(axes, keepdim=True)
    return middle * (middle.square().mean(axes, keepdim=True) + epsilon).rsqrt() * scale.reshape(shape) + bias.reshape(
        shape
    )


@kernel("GroupNormalization", override=_GROUP)
def _group_normalization(
    x: Any, scale: Any, bias: Any, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    # torch.nn.functional's version rejects groups of one element.
    return torch.group_norm(x, num_groups, scale, bias, epsilon)


@kernel("RMSNormalization", override=_RMS)
def _rms_normalization(x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    shape = x.shape[axis % x.ndim :]
    if scale.shape == shape and x.dtype in (torch.float32, torch.float64):
        return F.rms_norm(x, shape, scale, epsilon)
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return F.rms_norm(wide, shape, None, epsilon).to(x.dtype) * scale


@kernel("LpNormalization", check_norm, override=_LP)
def _lp_normalization(x: Any, *, axis: int = -1, p: int = 2) -> Any:
    norm = torch.linalg.vector_norm(x, p, axis, True)
    # Zeros stay zero, and so does their gradient.
    return x / norm.masked_fill(norm == 0, float("inf"))


def _norm(xp: Any, x: Any, axes: tuple[int, ...], keep: bool, p: int = 2) -> Any:
    # torch's gradient is 0 where the norm is 0.
    return torch.linalg.vector_norm(x, p, axes, keep)


kernel("ReduceL2", settings=(1,), override=_NORM)(on_torch(Composite(function=reduced(in_float(_norm)))))


@kernel("GlobalLpPool", check_space, override=_GLOBAL)
def _global_norm(x: Any, *, p: int = 2) -> Any:
    return torch.linalg.vector_norm(x, p, tuple(range(2, x.ndim)), True)
