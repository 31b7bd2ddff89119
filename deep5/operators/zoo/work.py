"""Work and depth of the four convolutions, by the published formulas and as implemented by deep5's operators.

Work is the number of multiplications, depth the longest chain of dependent additions, as in Ben-Nun and Hoefler,
Demystifying Parallel and Distributed Deep Learning, ACM Computing Surveys 52(4), 2019, arXiv:1802.09941, the table
"Work-Depth Analysis of Convolution Implementations". Its published row for Winograd's algorithm is incorrect;
`winograd_work` corrects it following Lavin and Gray, arXiv:1509.09308, sections 4 and 5:

- α is given as m - r + 1, which for F(2x2, 3x3) is 0. An input tile for m outputs of a filter with r taps has m + r - 1
  elements, which is also the minimum number of multiplications (their equation 1).
- The products of channels are given as C_out C_in P. Each of the P tiles has α² of them.
- Each of the three transforms is counted once. Kernels are transformed for each pair of channels, input tiles
  for each input channel, output tiles for each output channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log2

__all__ = [
    "FILTERING",
    "Convolution",
    "Filtering",
    "direct_depth",
    "direct_multiplications",
    "direct_work",
    "fft_depth",
    "fft_multiplications",
    "fft_work",
    "im2col_depth",
    "im2col_work",
    "winograd_depth",
    "winograd_multiplications",
    "winograd_work",
]


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """The sizes of a convolution.

    Attributes:
        batch: Images N.
        channels: Input channels C_in.
        height: Input height H.
        width: Input width W.
        filters: Output channels C_out.
        kernel: Kernel dimensions K_y and K_x.
        strides: Steps down and right.
        pads: Zeros above, left, below and right.

    >>> Convolution(batch=1, channels=3, height=8, width=8, filters=4, kernel=(3, 3), pads=(1, 1, 1, 1)).output
    (8, 8)
    """

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def output(self) -> tuple[int, int]:
        """Output dimensions H' and W'."""
        high = (self.height + self.pads[0] + self.pads[2] - self.kernel[0]) // self.strides[0] + 1
        return high, (self.width + self.pads[1] + self.pads[3] - self.kernel[1]) // self.strides[1] + 1

    @property
    def transformed(self) -> tuple[int, int]:
        """Dimensions of `ConvFFT`'s transforms, powers of two; both sides of an image share the same zeros."""
        sizes = ((self.height, 0), (self.width, 1))
        least = [
            max(
                size + self.pads[at],
                self.output[at] + self.kernel[at] - 1 - self.pads[at],
                self.output[at],
                self.kernel[at],
            )
            for size, at in sizes
        ]
        return _power_of_two(least[0]), _power_of_two(least[1])

    def tiles(self, extent: int) -> int:
        """Number P of tiles of `extent` x `extent` outputs, over all images."""
        return self.batch * -(-self.output[0] // extent) * -(-self.output[1] // extent)


@dataclass(frozen=True)
class Filtering:
    """A minimal filtering algorithm F(m x m, r x r): Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A.

    Attributes:
        data: Bᵀ, α x α.
        kernel: G, α x r.
        inverse: Aᵀ, m x α.
    """

    data: Sequence[Sequence[Fraction]]
    kernel: Sequence[Sequence[Fraction]]
    inverse: Sequence[Sequence[Fraction]]


def _matrix(text: str) -> tuple[tuple[Fraction, ...], ...]:
    return tuple(tuple(Fraction(number) for number in row.split()) for row in text.split(";"))


FILTERING = {
    2: Filtering(
        _matrix("1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1"),
        _matrix("1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1"),
        _matrix("1 1 1 0; 0 1 -1 -1"),
    ),
    4: Filtering(
        _matrix("4 0 -5 0 1 0; 0 -4 -4 1 1 0; 0 4 -4 -1 1 0; 0 -2 -1 2 1 0; 0 2 -1 -2 1 0; 0 4 0 -5 0 1"),
        _matrix("1/4 0 0; -1/6 -1/6 -1/6; -1/6 1/6 -1/6; 1/24 1/12 1/6; 1/24 -1/12 1/6; 0 0 1"),
        _matrix("1 1 1 1 1 0; 0 1 -1 2 -2 0; 0 1 1 4 4 0; 0 1 -1 8 -8 1"),
    ),
}
"""The matrices of `ConvWinograd` by the size m of an output tile: Lavin and Gray, sections 4.1 and 4.3."""


def direct_work(sizes: Convolution) -> int:
    """N C_out H' W' C_in K_y K_x."""
    high, wide = sizes.output
    return sizes.batch * sizes.filters * high * wide * sizes.channels * sizes.kernel[0] * sizes.kernel[1]


def direct_depth(sizes: Convolution) -> int:
    """⌈log2 C_in⌉ + ⌈log2 K_y⌉ + ⌈log2 K_x⌉."""
    return _levels(sizes.channels) + _levels(sizes.kernel[0]) + _levels(sizes.kernel[1])


def im2col_work(sizes: Convolution) -> int:
    """Equal to that of the definition: patches are copied, and copies do not count as work."""
    return direct_work(sizes)


def im2col_depth(sizes: Convolution) -> int:
    """Equal to that of the definition."""
    return direct_depth(sizes)


def fft_work(sizes: Convolution, constant: float = 0.5) -> float:
    """c H W log2(H W) (C_out C_in + N C_in + N C_out) + H W N C_in C_out, of complex numbers.

    Args:
        sizes: H and W are the dimensions of the transforms, from `Convolution.transformed`.
        constant: c, which the publication does not specify; a radix-2 transform has one multiplication per two elements
            at each of its log2(H W) levels.
    """
    area = sizes.transformed[0] * sizes.transformed[1]
    n, c, k = sizes.batch, sizes.channels, sizes.filters
    return constant * area * log2(area) * (k * c + n * c + n * k) + area * n * c * k


def fft_depth(sizes: Convolution) -> int:
    """2 ⌈log2 H W⌉ + ⌈log2 C_in⌉."""
    return 2 * _levels(sizes.transformed[0] * sizes.transformed[1]) + _levels(sizes.channels)


def winograd_work(sizes: Convolution, tile: int) -> int:
    """C_out C_in P α² + C_out C_in (α r² + α² r) + C_in P 2 α³ + C_out P (α² m + α m²), with α = m + r - 1.

    The terms are the products of channels, and the transforms of kernels, input tiles and output tiles as dense matrix
    products; with one transform each, the terms are the published α (r² + α r + 2 α² + α m + m²).

    Args:
        sizes: Sizes of a convolution with stride 1 and a square kernel of size r.
        tile: Size m of an output tile.
    """
    m, r = tile, sizes.kernel[0]
    alpha, pairs, tiles = m + r - 1, sizes.filters * sizes.channels, sizes.tiles(tile)
    kernels = pairs * (alpha * r * r + alpha * alpha * r)
    inputs = sizes.channels * tiles * 2 * alpha**3
    outputs = sizes.filters * tiles * (alpha * alpha * m + alpha * m * m)
    return pairs * tiles * alpha * alpha + kernels + inputs + outputs


def winograd_depth(sizes: Convolution, tile: int) -> int:
    """2 ⌈log2 r⌉ + 4 ⌈log2 α⌉ + ⌈log2 C_in⌉.

    As published: the transforms of kernels (2 ⌈log2 r⌉) and of input tiles (2 ⌈log2 α⌉) follow each other.

    Args:
        sizes: Sizes of a convolution with a square kernel.
        tile: Size m of an output tile.
    """
    r = sizes.kernel[0]
    return 2 * _levels(r) + 4 * _levels(tile + r - 1) + _levels(sizes.channels)


def direct_multiplications(sizes: Convolution) -> int:
    """Multiplications of `ConvDirect`: `direct_work` without products with zeros of the padding."""
    places = 1
    for axis, extent in enumerate((sizes.height, sizes.width)):
        first, step = -sizes.pads[axis], sizes.strides[axis]
        starts = range(first, first + step * sizes.output[axis], step)
        places *= sum(0 <= start + tap < extent for start in starts for tap in range(sizes.kernel[axis]))
    return sizes.batch * sizes.filters * sizes.channels * places


def fft_multiplications(sizes: Convolution) -> tuple[int, int]:
    """Real multiplications of `ConvFFT`: at the frequencies, and in the transforms.

    Real images need only half of the frequencies; two channels are transformed at a time; rows of zeros and rows that
    are not needed are not transformed; a factor of 1 does not count as a multiplication.
    """
    (high, wide), n, c, k = sizes.transformed, sizes.batch, sizes.channels, sizes.filters
    products = 4 * high * (wide // 2 + 1) * n * c * k
    across, down = _butterflies(wide), wide * _butterflies(high)
    images = ((n, c, sizes.height), (k, c, sizes.kernel[0]), (n, k, sizes.output[0]))
    return products, 4 * sum(count * -(-channels // 2) * (rows * across + down) for count, channels, rows in images)


def winograd_multiplications(sizes: Convolution, tile: int) -> tuple[int, int]:
    """Multiplications of `ConvWinograd`: of channels, and in the transforms, without those by 0, 1 and -1.

    Args:
        sizes: Sizes of a convolution with stride 1 and a kernel of 3 x 3.
        tile: Size m of an output tile.
    """
    alpha, pairs, tiles = tile + 2, sizes.filters * sizes.channels, sizes.tiles(tile)
    algorithm = FILTERING[tile]
    shares = (
        (algorithm.kernel, pairs),
        (algorithm.data, sizes.channels * tiles),
        (algorithm.inverse, sizes.filters * tiles),
    )
    # Q x has one product for each such element and each column; Q x Qᵀ has another for each row of Q.
    transforms = sum(
        count * sum(abs(value) not in (0, 1) for row in matrix for value in row) * (len(matrix[0]) + len(matrix))
        for matrix, count in shares
    )
    return pairs * tiles * alpha * alpha, transforms


def _butterflies(extent: int) -> int:
    """Complex multiplications of a radix-2 transform by factors other than 1."""
    return extent // 2 * _levels(extent) - (extent - 1)


def _levels(count: int) -> int:
    """⌈log2 count⌉; 0 if `count` is 0."""
    return max(count - 1, 0).bit_length()


def _power_of_two(least: int) -> int:
    return 1 << _levels(least)
