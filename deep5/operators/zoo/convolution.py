"""Convolution of images by four algorithms: direct, im2col, FFT and Winograd's minimal filtering.

All compute the same sum, ONNX's Conv with one group, without bias and dilation; they differ in the number of
multiplications (`deep5.operators.zoo.work`), in memory and in accuracy. Their gradients are those of the convolution,
exact up to rounding, and computed in the same way for all four: by patches and deep5's matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deep5.core.errors import ShapeError, Unsupported, UsageError, brief
from deep5.core.tensors import TensorSpec
from deep5.operators.cpp import CppOperator
from deep5.operators.registry import register_operator
from deep5.operators.zoo import work

__all__ = ["ConvDirect", "ConvFFT", "ConvIm2Col", "ConvWinograd"]


@register_operator("ConvDirect", domain="deep5")
class ConvDirect(CppOperator):
    """Convolution by definition: a sum over input channels and kernel positions.

    Inputs are an image [N, C, H, W] and a weight [K, C, R, S], the output is [N, K, H', W']. `report` counts
    `"multiplications"`, without products with zeros of the padding, which a NaN in a weight would otherwise affect, and
    `"multiplications by filling"`, those with zeros that fill up vectors of output channels. In all four operators,
    `"workspace bytes"` is the maximum temporary memory requested by a call, forward or backward, without inputs and
    outputs.

    Args:
        strides: Steps down and right; one number for both.
        pads: Zeros above, left, below and right, in ONNX's order; two numbers for both sides of each axis, one for all.

    Raises:
        UsageError: Strides below 1, negative pads, or a wrong number of them.
    """

    source = "convolution_direct.cpp"

    def __init__(self, strides: int | Sequence[int] = (1, 1), pads: int | Sequence[int] = (0, 0, 0, 0)) -> None:
        super().__init__(strides=_strides(self, strides), pads=_pads(self, pads))

    def specs(self, x: TensorSpec, weight: TensorSpec) -> tuple[TensorSpec, ...]:  # type: ignore[override]
        """The output; raises ShapeError, like all operators of this module."""
        return _specs(self, x, weight, self.attributes["strides"], self.attributes["pads"])

    def flops(self, x: TensorSpec, weight: TensorSpec) -> int:
        """Multiplications and additions of the algorithm: two for each multiplication, those with zeros included."""
        return 2 * work.direct_work(_sizes(x, weight, self.attributes["strides"], self.attributes["pads"]))


@register_operator("ConvIm2Col", domain="deep5")
class ConvIm2Col(CppOperator):
    """Convolution as a product of the weights with a matrix of patches; see `ConvDirect`.

    `report` counts `"multiplications"`, including those with the padding's zeros, and `"multiplications by filling"`,
    those with zeros that fill up the blocks of the product.

    Args:
        strides: As in `ConvDirect`.
        pads: As in `ConvDirect`.
        whole: Build the whole matrix of all images before the product, as published: the workspace is R S times the
            input's size. Otherwise the matrix is built in blocks of columns that fit the caches.

    Raises:
        UsageError: As `ConvDirect`; `whole` is neither True nor False.

    References:
        Chellapilla, Puri and Simard, High Performance Convolutional Neural Networks for Document Processing,
        IWFHR 2006, section 2.2 (unrolling convolution).
    """

    source = "convolution_im2col.cpp"

    def __init__(
        self,
        strides: int | Sequence[int] = (1, 1),
        pads: int | Sequence[int] = (0, 0, 0, 0),
        whole: bool = False,
    ) -> None:
        if whole not in (False, True):  # a node's attribute is an integer
            raise UsageError(f"ConvIm2Col: got whole={brief(whole)}; allowed: True or False")
        super().__init__(strides=_strides(self, strides), pads=_pads(self, pads), whole=bool(whole))

    def specs(self, x: TensorSpec, weight: TensorSpec) -> tuple[TensorSpec, ...]:  # type: ignore[override]
        """The output."""
        return _specs(self, x, weight, self.attributes["strides"], self.attributes["pads"])

    def flops(self, x: TensorSpec, weight: TensorSpec) -> int:
        """Multiplications and additions of the algorithm."""
        return 2 * work.im2col_work(_sizes(x, weight, self.attributes["strides"], self.attributes["pads"]))


@register_operator("ConvFFT", domain="deep5")
class ConvFFT(CppOperator):
    """Convolution by the convolution theorem, with a fast Fourier transform of radix 2; see `ConvDirect`.

    Transforms have the next power of two as size. The error of an output is proportional to the largest outputs of its
    image, not to its own magnitude; non-finite values spread over the image, but not to others. `report` counts real
    multiplications: `"multiplications"` at the frequencies, `"multiplications by filling"` and
    `"multiplications of transforms"`.

    Args:
        strides: Only 1: the algorithm computes every position.
        pads: As in `ConvDirect`.

    Raises:
        Unsupported: Another stride.

    References:
        Mathieu, Henaff and LeCun, Fast Training of Convolutional Networks through FFTs, ICLR 2014, arXiv:1312.5851.
    """

    source = "convolution_fft.cpp"

    def __init__(self, strides: int | Sequence[int] = (1, 1), pads: int | Sequence[int] = (0, 0, 0, 0)) -> None:
        _no_stride(self, strides)
        super().__init__(pads=_pads(self, pads))

    def specs(self, x: TensorSpec, weight: TensorSpec) -> tuple[TensorSpec, ...]:  # type: ignore[override]
        """The output."""
        return _specs(self, x, weight, (1, 1), self.attributes["pads"])

    def flops(self, x: TensorSpec, weight: TensorSpec) -> int:
        """Real multiplications and additions of the algorithm."""
        return 2 * sum(work.fft_multiplications(_sizes(x, weight, (1, 1), self.attributes["pads"])))


@register_operator("ConvWinograd", domain="deep5")
class ConvWinograd(CppOperator):
    """Convolution with kernels of 3 x 3 by F(2x2, 3x3) or F(4x4, 3x3); see `ConvDirect`.

    A tile of m x m outputs takes (m + 2)² multiplications per pair of channels; the definition takes 9 m²: 2.25 times
    as many for m = 2, 4 times for m = 4. F(4x4, 3x3) loses accuracy, since the elements of its matrices are up to 8 and
    the sums cancel: its error is about ten times that of the definition. Non-finite values spread over a tile. `report`
    counts as in `ConvFFT`.

    Args:
        strides: Only 1: the algorithm has no other.
        pads: As in `ConvDirect`.
        tile: Size m of an output tile, 2 or 4.

    Raises:
        Unsupported: Another stride.
        UsageError: Another tile.

    References:
        Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308, sections 4.1 to 4.3.
    """

    source = "convolution_winograd.cpp"

    def __init__(
        self, strides: int | Sequence[int] = (1, 1), pads: int | Sequence[int] = (0, 0, 0, 0), tile: int = 2
    ) -> None:
        _no_stride(self, strides)
        if tile not in (2, 4):
            raise UsageError(
                f"ConvWinograd: got tile={brief(tile)}; allowed: 2, for F(2x2, 3x3), or 4, for F(4x4, 3x3)"
            )
        super().__init__(pads=_pads(self, pads), tile=int(tile))

    def specs(self, x: TensorSpec, weight: TensorSpec) -> tuple[TensorSpec, ...]:  # type: ignore[override]
        """The output."""
        for extent in weight.shape[2:]:
            if isinstance(extent, int) and extent != 3:
                raise ShapeError(
                    f"ConvWinograd: got a weight {weight}; allowed: kernels of 3 x 3; remedy: ConvIm2Col or ConvFFT"
                )
        return _specs(self, x, weight, (1, 1), self.attributes["pads"])

    def flops(self, x: TensorSpec, weight: TensorSpec) -> int:
        """Multiplications and additions of the algorithm."""
        sizes = _sizes(x, weight, (1, 1), self.attributes["pads"])
        return 2 * sum(work.winograd_multiplications(sizes, self.attributes["tile"]))


def _specs(
    operator: CppOperator, x: TensorSpec, weight: TensorSpec, strides: Sequence[int], pads: Sequence[int]
) -> tuple[TensorSpec, ...]:
    name = type(operator).__name__
    if len(x.shape) != 4 or len(weight.shape) != 4:
        raise ShapeError(f"{name}: got {x} and {weight}; allowed: an image [N, C, H, W] and a weight [K, C, R, S]")
    if x.dtype != weight.dtype:
        raise ShapeError(f"{name}: got {x} and {weight}; allowed: both of one element type")
    (n, c, *extents), (k, per_group, *kernel) = x.shape, weight.shape
    if isinstance(c, int) and isinstance(per_group, int) and c != per_group:
        raise ShapeError(f"{name}: got {x} and {weight}; allowed: as many channels in both (there are no groups)")
    made: list[Any] = [n, k]
    for axis, (extent, taps, stride) in enumerate(zip(extents, kernel, strides, strict=True)):
        room: Any = extent + (pads[axis] + pads[axis + 2]) - taps  # type: ignore[operator]  # symbolic ones support arithmetic
        if isinstance(taps, int) and taps < 1:
            raise ShapeError(f"{name}: got a weight {weight}; allowed: kernels of at least 1 x 1")
        if isinstance(room, int) and room < 0:
            raise ShapeError(
                f"{name}: got {x}, {weight} and the pads {tuple(pads)}; allowed: a kernel that the padded image holds"
            )
        made.append(room // stride + 1)
    return (TensorSpec(shape=tuple(made), dtype=x.dtype),)


def _sizes(x: TensorSpec, weight: TensorSpec, strides: Sequence[int], pads: Sequence[int]) -> work.Convolution:
    (n, c, height, width), (k, _, *kernel) = (tuple(map(int, spec.shape)) for spec in (x, weight))
    return work.Convolution(
        batch=n,
        channels=c,
        height=height,
        width=width,
        filters=k,
        kernel=(kernel[0], kernel[1]),
        strides=(strides[0], strides[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
    )


def _whole(operator: CppOperator, name: str, given: Any, counts: Sequence[int], least: int) -> tuple[int, ...]:
    numbers = (given,) if isinstance(given, int) else tuple(given) if isinstance(given, Sequence) else ()
    if len(numbers) not in counts or not all(isinstance(n, int) and n >= least for n in numbers):
        raise UsageError(
            f"{type(operator).__name__}: got {name}={brief(given)}; allowed: {' or '.join(map(str, counts))} "
            f"integers of at least {least}"
        )
    return numbers


def _strides(operator: CppOperator, given: Any) -> tuple[int, ...]:
    numbers = _whole(operator, "strides", given, (1, 2), 1)
    return numbers if len(numbers) == 2 else numbers * 2


def _no_stride(operator: CppOperator, given: Any) -> None:
    if _strides(operator, given) != (1, 1):
        raise Unsupported(
            f"{type(operator).__name__}: got strides={brief(given)}; allowed: 1: the algorithm has no other; remedy: "
            "ConvDirect or ConvIm2Col"
        )


def _pads(operator: CppOperator, given: Any) -> tuple[int, ...]:
    numbers = _whole(operator, "pads", given, (1, 2, 4), 0)
    return numbers * (4 // len(numbers))
