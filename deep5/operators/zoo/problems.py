"""Problem sets of studies: convolution by algorithm; a matrix product, layers and recurrent layers by batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import sqrt
from typing import Any

from deep5.core.quantities import count, size
from deep5.core.tensors import TensorSpec
from deep5.operators.problem import Problem
from deep5.operators.work import bytes_of, flops, moved_bytes
from deep5.operators.zoo import work
from deep5.operators.zoo.work import Convolution

__all__ = ["BATCHES", "RECURRENT", "convolutions", "layers", "products", "recurrent_layers"]

BATCHES = (256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Batch sizes, the largest first."""

# Images, channels, image size, filters, kernel size: the 3 x 3 layers of a residual network from the first stage to the
# last, one with few channels, and two kernels that Winograd's tiles do not support.
_SIZES = (
    (4, 64, 56, 64, 3),
    (4, 128, 28, 128, 3),
    (4, 256, 14, 256, 3),
    (4, 512, 7, 512, 3),
    (16, 16, 32, 16, 3),
    (4, 32, 28, 32, 5),
    (4, 16, 62, 16, 11),
)
RECURRENT = (("RNN", 1152), ("GRU", 512), ("LSTM", 256))
"""Cell and hidden units of each recurrent layer; 1152 is the most that Diamos et al. kept on one GPU."""
_STEPS, _GATES = 32, {"RNN": 1, "GRU": 3, "LSTM": 4}
_Depth = Callable[[Convolution], int]
_Work = Callable[[Convolution], float]
# Name, operator, additional attributes, work and depth by the published formulas.
_ALGORITHMS: tuple[tuple[str, str, dict[str, Any], _Work, _Depth], ...] = (
    ("direct", "deep5.ConvDirect", {}, work.direct_work, work.direct_depth),
    ("im2col", "deep5.ConvIm2Col", {}, work.im2col_work, work.im2col_depth),
    ("fft", "deep5.ConvFFT", {}, work.fft_work, work.fft_depth),
    *(
        (
            f"winograd{tile}",
            "deep5.ConvWinograd",
            {"tile": tile},
            lambda sizes, tile=tile: work.winograd_work(sizes, tile),
            lambda sizes, tile=tile: work.winograd_depth(sizes, tile),
        )
        for tile in (2, 4)
    ),
)


def convolutions(dtype: str) -> list[Problem]:
    """Each size with the framework's own convolution and with each algorithm that supports it, with work and depth.

    The use of a problem is its size: `--use size-3` runs every algorithm on that size.

    Args:
        dtype: Element type of every tensor.
    """
    problems = []
    for number, (n, c, extent, k, taps) in enumerate(_SIZES, start=1):
        pad = taps // 2
        sizes = Convolution(
            batch=n, channels=c, height=extent, width=extent, filters=k, kernel=(taps, taps), pads=(pad,) * 4
        )
        inputs = (
            TensorSpec(shape=(n, c, extent, extent), dtype=dtype),
            TensorSpec(shape=(k, c, taps, taps), dtype=dtype),
        )
        title = f"N={n} C={c} H=W={extent} K={k} {taps}x{taps}"
        pads = {"pads": [pad] * 4}
        problems.append(
            Problem(
                name=f"size-{number}-own",
                title=f"{title}, the framework's own",
                operator="Conv",
                inputs=inputs,
                attributes=pads,
                use=f"size-{number}",
                sizes=asdict(sizes),
            )
        )
        for name, operator, further, by_work, by_depth in _ALGORITHMS:
            if taps != 3 and name.startswith("winograd"):
                continue
            total, depth = by_work(sizes), by_depth(sizes)
            problems.append(
                Problem(
                    name=f"size-{number}-{name}",
                    title=f"{title}, {name}, work {total:.3g}, depth {depth}",
                    operator=operator,
                    inputs=inputs,
                    attributes={**pads, **further},
                    use=f"size-{number}",
                    sizes={**asdict(sizes), "algorithm": name, "work": total, "depth": depth},
                )
            )
    return problems


def products(dtype: str) -> list[Problem]:
    """Products b x 4096 · 4096 x 9192 for each batch size b.

    Args:
        dtype: Element type of every tensor.
    """
    return _batches("matmul", "MatMul", dtype, (4096,), [(4096, 9192)], {})


def layers(dtype: str) -> list[Problem]:
    """A convolution, a dense layer and a pooling layer for each batch size.

    Args:
        dtype: Element type of every tensor.
    """
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    return [
        *_batches("conv", "Conv", dtype, (64, 56, 56), [(64, 64, 3, 3)], {"pads": [1, 1, 1, 1]}),
        *_batches("dense", "Gemm", dtype, (2048,), [(1000, 2048), (1000,)], {"transB": 1}),
        *_batches("pool", "MaxPool", dtype, (64, 56, 56), [], window),
    ]


def recurrent_layers(dtype: str) -> list[Problem]:
    """Recurrent layers of 32 steps for batches of 64 down to 1: ONNX's layer, and `deep5.RecurrentPersistent`.

    The use of a problem is its cell: `--use lstm`. The title has the operations of the products and the bytes that have
    to be moved: inputs and outputs once (`bytes_once`), or the weights of the state once for every step
    (`bytes_per_step`), as where they do not stay in a cache between two steps. The two differ most at small batches,
    where a step has few operations for each weight.

    Args:
        dtype: Element type of every tensor.

    References:
        Diamos et al., Persistent RNNs: stashing recurrent weights on-chip, ICML 2016, sections 3 and 5.
    """
    return [
        _recurrent(cell, hidden, batch, dtype, persistent)
        for cell, hidden in RECURRENT
        for persistent in (False, True)
        for batch in BATCHES
        if batch <= 64
    ]


def _recurrent(cell: str, hidden: int, batch: int, dtype: str, persistent: bool) -> Problem:
    rows, scale = _GATES[cell] * hidden, 1 / sqrt(hidden)
    shapes = ((_STEPS, batch, hidden), (1, rows, hidden), (1, rows, hidden), (1, 2 * rows))
    inputs = tuple(TensorSpec(shape=shape, dtype=dtype) for shape in shapes)
    outputs = (TensorSpec(shape=(_STEPS, 1, batch, hidden), dtype=dtype),)
    # The reset gate after the product, as in the frameworks' own layers.
    attributes = {"hidden_size": hidden, **({"linear_before_reset": 1} if cell == "GRU" else {})}
    operations, once = flops(cell, inputs, outputs, attributes), moved_bytes(inputs, outputs)
    each = once + (_STEPS - 1) * bytes_of(inputs[2:3])
    title = f"{cell} H={hidden} T={_STEPS} N={batch}{', persistent' if persistent else ''}"
    return Problem(
        name=f"{cell.lower()}{'_persistent' if persistent else ''}-{batch}",
        title=f"{title}, {count(operations or 0, 'FLOP')}, {size(once)} (weights in every step: {size(each)})",
        operator="deep5.RecurrentPersistent" if persistent else cell,
        inputs=inputs,
        outputs=() if persistent else outputs,
        attributes={"cell": cell} if persistent else attributes,
        use=cell.lower(),
        # Uniform numbers of this magnitude give a contracting matrix.
        scales=(1.0, scale, scale, scale),
        sizes={"batch": batch, "bytes_once": once, "bytes_per_step": each},
    )


def _batches(
    name: str,
    operator: str,
    dtype: str,
    sample: tuple[int, ...],
    others: Sequence[tuple[int, ...]],
    attributes: dict[str, Any],
) -> list[Problem]:
    made = []
    for batch in BATCHES:
        shapes = [(batch, *sample), *others]
        title = " ".join("x".join(map(str, shape)) for shape in shapes)
        made.append(
            Problem(
                name=f"{name}-{batch}",
                title=f"{name} {title}",
                operator=operator,
                inputs=tuple(TensorSpec(shape=shape, dtype=dtype) for shape in shapes),
                attributes=attributes,
                sizes={"batch": batch},
            )
        )
    return made
