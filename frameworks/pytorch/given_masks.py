"""Dropout of PyTorch's functions by given masks: those of a module's export, to prove that both train alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from deep5.core.errors import Unsupported
from deep5.networks.run_modes import Mask

__all__ = ["exportable_dropout", "given_masks"]

# Dropout of whole channels.
_OF_FEATURES = ("dropout1d", "dropout2d", "dropout3d")


@contextmanager
def exportable_dropout() -> Iterator[None]:
    """Let PyTorch's functions drop as ONNX's operator can: into a new tensor, and channels by a factor for each."""
    drop = functional.dropout

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
        return drop(input, p, training)

    def features(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
        return _features(drop, input, p, training)

    with _replaced({"dropout": dropout, **dict.fromkeys(_OF_FEATURES, features)}):
        yield


def _features(drop: Callable[..., Any], value: Any, p: float, training: bool) -> Any:
    """Dropout of whole channels, of an array of shape (N, C, …), as dropout of one factor for each."""
    if not training or not p:
        return value
    if value.dim() < 3:
        raise Unsupported(
            f"dropout of channels of {tuple(value.shape)}, where the channels are the first axis; allowed: a batch of "
            "three axes or more; remedy: torch.nn.Dropout"
        )
    ones = torch.ones((*value.shape[:2], *[1] * (value.dim() - 2)), dtype=value.dtype, device=value.device)
    return value * drop(ones, p, training)


@contextmanager
def given_masks(name: str, masks: Sequence[tuple[Mask, Any]]) -> Iterator[None]:
    """Let `torch.nn.functional` drop by masks, the next one at each call, also in attention.

    It replaces functions of that module for all threads.

    Args:
        name: Name of the module that is called, for messages.
        masks: What each is for, and its factors: 0, or 1 / (1 - ratio).

    Raises:
        Unsupported: The calls have other ratios or shapes, or there are more or fewer.
    """
    left = iter(masks)
    drop, attend = functional.dropout, functional.scaled_dot_product_attention

    def factors(ratio: float, value: Any) -> Any:
        following = next(left, None)
        if following is None:
            raise Unsupported(f"{name} drops elements more often than its export, which does so {len(masks)} times")
        mask, found = following
        # ONNX stores the ratio in float32.
        if not math.isclose(mask.ratio, ratio, rel_tol=1e-6) or found.shape != value.shape:
            raise Unsupported(
                f"{name} drops {ratio:g} of {tuple(value.shape)}, and its export {mask.ratio:g} of "
                f"{tuple(found.shape)} there"
            )
        return found.to(value.dtype)

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
        if not training or not 0.0 < p < 1.0:
            return drop(input, p, training, inplace)
        return input.mul_(factors(p, input)) if inplace else input * factors(p, input)

    def features(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
        return _features(dropout, input, p, training)

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if not dropout_p:
            return attend(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            raise Unsupported(f"{name} drops elements of attention with shared heads (enable_gqa)")
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        if attn_mask is not None:
            boolean = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if boolean else scores + attn_mask
        weights = scores.softmax(-1)
        return (weights * factors(dropout_p, weights)) @ value

    own = dict.fromkeys(_OF_FEATURES, features)
    with _replaced({"dropout": dropout, "scaled_dot_product_attention": attention, **own}):
        yield
    if (unused := sum(1 for _ in left)) > 0:
        raise Unsupported(
            f"{name} drops elements {len(masks) - unused} times by functions of torch.nn.functional, and its export "
            f"{len(masks)} times"
        )


@contextmanager
def _replaced(functions: dict[str, Callable[..., Any]]) -> Iterator[None]:
    kept = {name: getattr(functional, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(functional, name, function)
        yield
    finally:
        for name, function in kept.items():
            setattr(functional, name, function)
