"""Problem sets of three studies: convolution by algorithm, a matrix product by batch size, layers by batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from deep5.core.tensors import TensorSpec
from deep5.operators.problem import Problem
from deep5.operators.zoo import work
from deep5.operators.zoo.work import Convolution

__all__ = ["BATCHES", "convolutions", "layers", "products"]

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
