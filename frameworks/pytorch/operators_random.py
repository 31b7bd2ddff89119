"""Random operators: each has a separate stream, seeded by the node's attribute."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from deep5.frameworks.pytorch.table import EAGER, attribute, number, operator

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__: list[str] = []


def _stream(emitter: Emitter, node: ir.Node) -> str:
    """The identifier of a node's generator; without a seed in the file, the seed derives from its name."""
    seed = attribute(node, "seed", None)
    place = torch.device(emitter.bound[emitter.place()])
    bits = zlib.crc32(str(node.name).encode()) if seed is None else int(np.float32(seed).view(np.uint32))
    name = f"r{len(emitter.bound)}"
    emitter.bound[name] = torch.Generator(place).manual_seed(bits)
    return name


def _uniform(shape: Any, kind: Any, place: Any, stream: Any, low: float, high: float) -> Any:
    return torch.empty(shape, dtype=kind, device=place).uniform_(low, high, generator=stream)


def _normal(shape: Any, kind: Any, place: Any, stream: Any, mean: float, scale: float) -> Any:
    return torch.empty(shape, dtype=kind, device=place).normal_(mean, scale, generator=stream)


def _drawn(op_type: str, function: Any, first: tuple[str, float], second: tuple[str, float]) -> None:
    def write(emitter: Emitter, node: ir.Node, shape: str) -> str:
        kind, place, stream = emitter.dtype(node.outputs[0]), emitter.place(), _stream(emitter, node)
        how = ", ".join(number(attribute(node, *each)) for each in (first, second))
        return f"{emitter.function(function)}({shape}, {kind}, {place}, {stream}, {how})"

    @operator(op_type)
    def emit(emitter: Emitter, node: ir.Node) -> str:
        return write(emitter, node, emitter.literal(attribute(node, "shape")))

    @operator(f"{op_type}Like")
    def emit_like(emitter: Emitter, node: ir.Node) -> str:
        return write(emitter, node, f"{emitter.name(node.inputs[0])}.shape")


_drawn("RandomNormal", _normal, ("mean", 0.0), ("scale", 1.0))
_drawn("RandomUniform", _uniform, ("low", 0.0), ("high", 1.0))


def _bernoulli(p: Any, kind: Any, stream: Any) -> Any:
    return torch.bernoulli(p.detach(), generator=stream).to(kind)


@operator("Bernoulli")
def _emit_bernoulli(emitter: Emitter, node: ir.Node) -> str:
    kind, stream = emitter.dtype(node.outputs[0]), _stream(emitter, node)
    return f"{emitter.function(_bernoulli)}({emitter.name(node.inputs[0])}, {kind}, {stream})"


def _multinomial(logits: Any, count: int, kind: Any, stream: Any) -> Any:
    """Classes drawn with replacement; the input is log-probabilities, up to a constant."""
    chances = torch.softmax(logits.detach().float(), 1)
    return torch.multinomial(chances, count, replacement=True, generator=stream).to(kind)


@operator("Multinomial")
def _emit_multinomial(emitter: Emitter, node: ir.Node) -> str:
    kind, stream, count = emitter.dtype(node.outputs[0]), _stream(emitter, node), attribute(node, "sample_size", 1)
    x = emitter.name(node.inputs[0])
    return f"{emitter.function(_multinomial)}({x}, {count}, {kind}, {stream})"


# Each call draws new values: torch would compile a single draw.
EAGER.update(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"))
