"""Operators of sequence models: attention by torch's kernel, rotary embeddings, causal convolution, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.table import attribute, extents, kernel, number, operator, rank

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__: list[str] = []

_SHORT = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
_WINDOWS = ("left_window_size", "right_window_size")


def _check_attention(node: ir.Node) -> str | None:
    """Cases that torch's kernel does not support and the body of ONNX's function does."""
    q, k, v, mask = (*node.inputs, None)[:4]
    kind = q.dtype  # type: ignore[union-attr]  # exists
    if len(node.outputs) > 3 and node.outputs[3].name:
        return "the scores, which torch's kernel does not give"
    if attribute(node, "softcap", 0.0) > 0:
        return "softcap"
    if attribute(node, "scale", 1.0) < 0:
        return "a scale below 0, of which ONNX takes the root"
    precision = attribute(node, "softmax_precision", None)
    if precision not in (None, kind, ir.DataType.FLOAT if kind in _SHORT else kind):
        return f"softmax_precision={precision} of {kind}"
    if {value.dtype for value in (k, v) if value is not None} != {kind}:
        return "queries, keys and values of several element types"
    if mask is not None and mask.dtype not in (kind, ir.DataType.BOOL):
        return f"a mask of {mask.dtype}"
    if rank(node) == 3 and None in _heads_of(node):
        return "three axes, and no numbers of heads"
    return None if rank(node) in (3, 4) else f"{rank(node)} axes; allowed: 3, 4"


def _heads_of(node: ir.Node) -> tuple[int | None, int | None]:
    """The number of query heads and of key and value heads; None if unknown."""
    if rank(node) == 3:
        return attribute(node, "q_num_heads", None), attribute(node, "kv_num_heads", None)
    return extents(node, 0)[1], extents(node, 1)[1]


def _with_heads(x: Any, heads: int) -> Any:
    """From shape (batch, length, heads · size) to (batch, heads, length, size)."""
    return x.unflatten(2, (heads, x.shape[2] // heads)).transpose(1, 2)


def _allowed(q: Any, k: Any, offset: Any, lengths: Any, causal: bool, windows: tuple[int, int]) -> Any:
    """Which query sees which key, broadcastable to (batch, heads, queries, keys); None if each sees all."""
    places, (left, right) = torch.arange(k.shape[2], device=k.device), windows
    found = None if lengths is None else places < lengths[:, None, None, None]
    if causal:  # no key after a query's own position
        right = 0
    if left >= 0 or right >= 0:
        distance = torch.arange(q.shape[2], device=k.device)[:, None] + offset - places
        for inside in ([distance <= left] if left >= 0 else []) + ([distance >= -right] if right >= 0 else []):
            found = inside if found is None else found & inside
    return found


def _together(mask: Any, allowed: Any, keys: int) -> Any:
    """Combine a mask with the allowed positions; keys beyond the mask are excluded."""
    if mask is not None:
        out: Any = False if mask.dtype == torch.bool else float("-inf")
        mask = F.pad(mask, (0, keys - mask.shape[-1]), value=out) if mask.shape[-1] < keys else mask
        mask = mask[(None,) * (4 - mask.ndim)]
        if allowed is not None:
            mask = mask & allowed if mask.dtype == torch.bool else torch.where(allowed, mask, out)
        return mask
    return None if allowed is None else allowed[(None,) * (4 - allowed.ndim)]


def _attention(
    dot: Any,
    inputs: tuple[Any, ...],
    heads: tuple[int | None, int | None],
    causal: bool,
    windows: tuple[int, int],
    scale: float | None,
) -> tuple[Any, Any, Any]:
    """ONNX's attention; returns the result, and all keys and values.

    Args:
        dot: torch's kernel.
        inputs: Queries, keys, values, mask, past keys and values, lengths; None for omitted ones.
        heads: Numbers of query heads and of key and value heads, if heads are not a dimension.
        causal: Whether no query sees a key after its own position.
        windows: Number of keys before and after its position that a query sees; -1 for all.
        scale: The factor of the scores; None: one over the square root of the head size.

    References:
        ONNX, Attention-25. Vaswani et al., Attention is all you need, NeurIPS 2017, equation 1.
    """
    q, k, v, mask, past_key, past_value, lengths = inputs
    flat = q.ndim == 3
    if flat:
        q, k, v = (_with_heads(x, n) for x, n in zip((q, k, v), (heads[0], heads[1], heads[1]), strict=True))  # type: ignore[arg-type]  # checked
    offset = 0 if lengths is None else (lengths - q.shape[2])[:, None, None, None]
    if past_key is not None:
        offset = past_key.shape[2]
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    alone = mask is past_key is lengths is None and windows == (-1, -1)  # torch's own causality starts at the first key
    if not alone:
        mask = _together(mask, _allowed(q, k, offset, lengths, causal, windows), k.shape[2])
    y = dot(q, k, v, mask, 0.0, causal and alone, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return (y.transpose(1, 2).flatten(2) if flat else y), k, v


def _attention_with_cache(*settings: Any) -> tuple[Any, Any, Any]:
    """Like `_attention`, but keys and values do not share memory with the inputs."""
    y, k, v = _attention(*settings)
    return y, k.clone(), v.clone()


@operator("Attention", _check_attention, ranked=True)
def _emit_attention(emitter: Emitter, node: ir.Node) -> str | None:
    dot, heads = emitter.product(node, F.scaled_dot_product_attention), _heads_of(node)
    causal, scale = bool(attribute(node, "is_causal", 0)), attribute(node, "scale", None)
    scaled = "None" if scale is None else number(scale)
    windows = tuple(attribute(node, name, -1) for name in _WINDOWS)
    q, k, v, *further = (emitter.name(value) for value in (*node.inputs, *(None,) * 4)[:7])
    plain = set(further) == {"None"} and windows == (-1, -1) and len(node.outputs) == 1
    if plain and rank(node) == 4 and None not in heads:
        grouped = "" if heads[0] == heads[1] else ", enable_gqa=True"
        return f"{dot}({q}, {k}, {v}, None, 0.0, {causal}, scale={scaled}{grouped})"
    inputs = ", ".join((q, k, v, *further))
    text = f"({dot}, ({inputs}), {heads}, {causal}, {windows}, {scaled})"
    if not any(value.name for value in node.outputs[1:]):
        return f"{emitter.function(_attention)}{text}[0]"
    targets = [emitter.name(value) if value.name else "_" for value in node.outputs[:3]]
    emitter.line(f"{', '.join(targets)}, = {emitter.function(_attention_with_cache)}{text}[:{len(targets)}]")
    return None


@kernel("RotaryEmbedding")
def _rotary_embedding(
    x: Any,
    cosines: Any,
    sines: Any,
    positions: Any = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Any:
    """Su et al., RoFormer, arXiv:2104.09864, equation 34: rotates pairs of features by an angle of their position."""
    flat = x.ndim == 3
    y = x.unflatten(2, (num_heads, x.shape[2] // (num_heads or 1))) if flat else x
    cos, sin = (
        (each if positions is None else each[positions]).unsqueeze(2 if flat else 1) for each in (cosines, sines)
    )
    size = rotary_embedding_dim or y.shape[-1]
    turned, rest = y[..., :size], y[..., size:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    parts = [cos * first - sin * second, sin * first + cos * second]
    parts = [torch.stack(parts, -1).flatten(-2)] if interleaved else parts
    y = torch.cat([*parts, rest] if rest.shape[-1] else parts, -1) if len(parts) > 1 or rest.shape[-1] else parts[0]
    return y.flatten(2) if flat else y


def _causal_convolution(product: Any, x: Any, weight: Any, bias: Any, past: Any, gated: bool) -> tuple[Any, Any]:
    """A causal convolution per channel; returns the result and the past for the next call."""
    before = weight.shape[2] - 1
    padded = F.pad(x, (before, 0)) if past is None else torch.cat((past, x), 2)
    y = product(padded, weight, bias, groups=weight.shape[0])
    return (F.silu(y) if gated else y), padded.narrow(2, x.shape[2], before)


@operator("CausalConvWithState")
def _emit_causal_convolution(emitter: Emitter, node: ir.Node) -> str | None:
    inputs = ", ".join(emitter.name(value) for value in (*node.inputs, *(None,) * 2)[:4])
    gated = attribute(node, "activation", "none") != "none"
    text = f"{emitter.function(_causal_convolution)}({emitter.product(node, F.conv1d)}, {inputs}, {gated})"
    if len(node.outputs) == 1:
        return f"{text}[0]"
    targets = [emitter.name(value) if value.name else "_" for value in node.outputs]
    emitter.line(f"{', '.join(targets)} = {text}")
    return None
