"""Convolution by four algorithms and deep5's own matrix product: results, gradients, counts, errors, speed."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import deep5 as d5
from deep5.core import quantities
from deep5.core.arguments import THREADS
from deep5.core.compiler import CPP, compiler
from deep5.core.errors import OperatorError, ShapeError, Unsupported, UsageError
from deep5.operators import zoo
from deep5.operators.registry import make_operator
from deep5.operators.zoo import ConvDirect, ConvFFT, ConvIm2Col, ConvWinograd, MatMulBlocked, problems, work
from deep5.operators.zoo.work import FILTERING, Convolution
from deep5.recipes.linear_scaling import LinearScaling, LinearScalingOfOne

FOLDER = Path(zoo.__file__).parent
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}


@dataclass(frozen=True)
class Case:
    """Shapes of input and weight, strides, pads (above, left, below, right)."""

    x: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __str__(self) -> str:
        return "-".join("x".join(map(str, part)) for part in (self.x, self.weight, self.strides, self.pads))

    @property
    def sizes(self) -> Convolution:
        (n, c, h, w), (k, _, r, s) = self.x, self.weight
        return Convolution(
            batch=n, channels=c, height=h, width=w, filters=k, kernel=(r, s), strides=self.strides, pads=self.pads
        )


CASES = [
    Case((2, 3, 8, 9), (4, 3, 3, 3), pads=(1, 1, 1, 1)),
    Case((2, 5, 7, 11), (3, 5, 3, 3), pads=(0, 2, 1, 0)),  # different padding on each side
    Case((3, 20, 13, 30), (17, 20, 3, 3), pads=(1, 1, 1, 1)),  # more than one panel of channels, partial tiles
    Case((1, 1, 1, 1), (1, 1, 1, 1)),
    Case((1, 1, 1, 1), (7, 1, 3, 3), pads=(1, 1, 1, 1)),  # all but one of each patch is padding
    Case((1, 1, 3, 3), (1, 1, 3, 3)),  # one position
    Case((2, 2, 2, 3), (2, 2, 1, 1), pads=(3, 3, 3, 3)),  # pads larger than image and kernel: positions without input
    Case((2, 2, 9, 9), (3, 2, 4, 6), pads=(5, 5, 2, 2)),  # an even kernel, which fits into the padding
    Case((1, 3, 40, 33), (2, 3, 5, 2), pads=(2, 0, 2, 1)),  # more positions than one block
    Case((0, 3, 5, 5), (2, 3, 3, 3), pads=(1, 1, 1, 1)),
    Case((2, 3, 13, 10), (5, 3, 5, 2), strides=(2, 3), pads=(2, 0, 1, 1)),
    Case((2, 4, 9, 12), (6, 4, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    Case((1, 2, 11, 11), (3, 2, 1, 1), strides=(4, 3)),  # positions that the stride skips
]

ALGORITHMS = {
    "direct": ConvDirect,
    "im2col": ConvIm2Col,
    "im2col whole": functools.partial(ConvIm2Col, whole=True),
    "fft": ConvFFT,
    "winograd2": functools.partial(ConvWinograd, tile=2),
    "winograd4": functools.partial(ConvWinograd, tile=4),
}


def takes(algorithm: str, case: Case) -> bool:
    if algorithm in ("direct", "im2col", "im2col whole"):
        return True
    return case.strides == (1, 1) and (algorithm == "fft" or case.weight[2:] == (3, 3))


def values(case: Case, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An image, a weight, and a gradient by the output."""
    draw = np.random.default_rng(sum(case.x) + sum(case.weight))
    output = (case.x[0], case.weight[0], *case.sizes.output)
    return tuple(draw.standard_normal(shape).astype(dtype) for shape in (case.x, case.weight, output))  # type: ignore[return-value]


def by_torch(case: Case, *given: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Output, gradient by the image and by the weight, in float64."""
    x, weight, dy = (torch.tensor(value.astype(np.float64)) for value in given)
    x.requires_grad_(), weight.requires_grad_()
    top, left, bottom, right = case.pads
    padded = torch.nn.functional.pad(x, (left, right, top, bottom))
    y = torch.nn.functional.conv2d(padded, weight, stride=case.strides)
    y.backward(dy)
    assert x.grad is not None
    assert weight.grad is not None
    return y.detach().numpy(), x.grad.numpy(), weight.grad.numpy()


def sum_bound(terms: int, magnitude: np.ndarray, dtype: str) -> np.ndarray:
    """For a sum of products in any order: (terms + 1) u times the sum of their magnitudes.

    Higham, Accuracy and Stability of Numerical Algorithms, section 3.1; doubled, since PyTorch's own sum has errors,
    too.
    """
    return 2 * (terms + 2) * ROUNDING[dtype] * magnitude


def fft_bound(case: Case, x: np.ndarray, weight: np.ndarray, dtype: str) -> np.ndarray:
    """For ConvFFT, for all outputs.

    A transform of n = 2^l elements has a relative error in the 2-norm of at most 7 l u (Higham, theorem 24.2: l η with
    η < 5 √2 u for factors accurate to u), and two images that are transformed as one share their errors. An output is a
    sum over channels of <X, W> / n, so the errors of both transforms enter as ||x|| ||w||, those of the sums over
    channels likewise, and those of the inverse as ||y|| <= ||x|| ||w||_1.
    """
    high, wide = case.sizes.transformed
    levels = np.log2(high * wide)
    norm = np.sqrt((x.astype(np.float64) ** 2).sum(axis=(2, 3))).max(initial=0)
    mass = np.abs(weight.astype(np.float64)).sum(axis=(2, 3)).max(initial=0)
    channels = max(case.x[1], 1)
    return np.asarray((3 * 7 * levels + 2 * channels + 8) * ROUNDING[dtype] * 2 * channels * norm * mass)


def winograd_bound(case: Case, x: np.ndarray, weight: np.ndarray, tile: int, dtype: str) -> np.ndarray:
    """For ConvWinograd, for all outputs: as for a sum, with the magnitudes of all matrices and their roundings.

    A result goes through 2 sums of alpha terms, 2 of r, one over channels and 2 of alpha again, and the elements of G
    are rounded themselves.
    """
    data, kernel, inverse = (
        np.abs(np.array(matrix, np.float64))
        for matrix in (FILTERING[tile].data, FILTERING[tile].kernel, FILTERING[tile].inverse)
    )
    alpha = tile + 2
    most = np.abs(x.astype(np.float64)).max(initial=0)
    kernels = kernel @ np.abs(weight.astype(np.float64)).sum(axis=1).max(axis=0, initial=0) @ kernel.T
    tiles = most * data @ np.ones((alpha, alpha)) @ data.T
    roundings = 2 * (alpha + 1) + 2 * (3 + 2) + max(case.x[1], 1) + 2 * (alpha + 1)
    return np.asarray(2 * roundings * ROUNDING[dtype] * (inverse @ (kernels * tiles) @ inverse.T).max())


def forward_bound(algorithm: str, case: Case, x: np.ndarray, weight: np.ndarray, dtype: str) -> np.ndarray:
    if algorithm == "fft":
        return fft_bound(case, x, weight, dtype)
    if algorithm.startswith("winograd"):
        return winograd_bound(case, x, weight, int(algorithm[-1]), dtype)
    terms = case.x[1] * case.weight[2] * case.weight[3]
    dummy = np.zeros((case.x[0], case.weight[0], *case.sizes.output))
    return sum_bound(terms, by_torch(case, abs(x), abs(weight), dummy)[0], dtype)


def excess(found: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> float:
    """The largest error as a share of its bound; zeros must be zeros."""
    assert found.shape == expected.shape
    error = np.abs(found.astype(np.float64) - expected)
    return float(np.max(np.where(error == 0, 0.0, error / np.maximum(bound, 1e-300)), initial=0.0))


@functools.cache
def operator(algorithm: str, strides: tuple[int, int], pads: tuple[int, int, int, int]) -> d5.CppOperator:
    return ALGORITHMS[algorithm](strides=strides, pads=pads)  # type: ignore[no-any-return,operator]


def check(op: d5.CppOperator, algorithm: str, case: Case, dtype: str) -> tuple[float, float, float]:
    """Errors of the output and of both gradients, as shares of their bounds."""
    x, weight, dy = values(case, dtype)
    y, dx, dweight = by_torch(case, x, weight, dy)
    _, dx_size, dweight_size = by_torch(case, abs(x), abs(weight), abs(dy))
    found = op.forward(x, weight)
    by_x, by_weight = op.backward([dy], [x, weight], [found], [True, True])
    assert found.dtype == by_x.dtype == by_weight.dtype == dtype
    k, _, r, s = case.weight
    return (
        excess(found, y, forward_bound(algorithm, case, x, weight, dtype)),
        excess(by_x, dx, sum_bound(k * r * s, dx_size, dtype)),
        excess(by_weight, dweight, sum_bound(y.shape[0] * y.shape[2] * y.shape[3], dweight_size, dtype)),
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_algorithms_convolve(case: Case, dtype: str) -> None:
    for algorithm in ALGORITHMS:
        if takes(algorithm, case):
            shares = check(operator(algorithm, case.strides, case.pads), algorithm, case, dtype)
            assert max(shares) <= 1, (algorithm, shares)


def test_narrow_numbers_are_computed_with_as_float32() -> None:
    """And rounded once: the error is that of half precision's last digit."""
    case = CASES[2]
    x, weight, dy = values(case, "float16")
    op = operator("im2col", case.strides, case.pads)
    y = op.forward(x, weight)
    grads = op.backward([dy], [x, weight], [y], [True, True])
    sizes = by_torch(case, abs(x), abs(weight), abs(dy))
    for found, expected, size in zip((y, *grads), by_torch(case, x, weight, dy), sizes, strict=True):
        assert found.dtype == "float16"
        # Sums of at most 1170 terms in float32, then one rounding.
        assert excess(found, expected, ROUNDING["float16"] * abs(expected) + sum_bound(1170, size, "float32")) <= 1


# In a separate process: memory that a process already holds, and reuses, does not show.
WORKSPACE = """
import ctypes, json
import numpy as np
from deep5.measuring.loops import peak_growth_bytes
from deep5.operators.zoo import ConvFFT, ConvIm2Col
draw, op = np.random.default_rng(0), {op}
x, weight = draw.standard_normal((8, 96, 27, 27), np.float32), draw.standard_normal((64, 96, 5, 5), np.float32)
op.forward(x[:1], weight)
y = op.forward(x, weight)
counted = op.report()["workspace bytes"]
ctypes.CDLL(None).malloc_trim(0)
grown = peak_growth_bytes(lambda: op.forward(x, weight))
op.report()
op.backward([y], [x, weight], [y], [True, True])
print(json.dumps([counted, grown, y.nbytes, op.report()["workspace bytes"]]))
"""


@pytest.mark.parametrize(
    ("op", "least"),
    [
        # R S times the input's.
        ("ConvIm2Col(pads=2, whole=True)", 8 * 96 * 25 * 27 * 27 * 4),
        # X, W and Y at all frequencies.
        ("ConvFFT(pads=2)", 544 * (4 * 8 * 96 + 2 * 96 * 64 + 2 * 8 * 64) * 4),
    ],
)
def test_the_workspace_that_is_counted_is_the_memory_that_is_taken(op: str, least: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKSPACE.format(op=op)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    counted, grown, result, backward = json.loads(done.stdout)
    assert least <= counted <= 1.1 * least + (4 << 20)
    if grown is None:
        pytest.skip("the system does not let the mark of the largest resident memory be set back")
    assert abs(grown - counted - result) <= 0.15 * counted
    assert 0 < backward < 0.1 * least, "gradients are computed in blocks"


def test_the_workspace_is_that_of_the_largest_call() -> None:
    op = ConvIm2Col(whole=True)
    weight = np.ones((1, 1, 2, 2))
    sizes = []
    for batches in ((1,), (5,), (1, 5, 2)):
        for batch in batches:
            op.forward(np.ones((batch, 1, 40, 40)), weight)
        sizes.append(op.report()["workspace bytes"])
    assert sizes[0] < sizes[1] == sizes[2]


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    case = CASES[0]
    x, weight, dy = values(case, "float64")
    op = ConvDirect(pads=1)
    y = op.forward(x, weight)
    both = op.backward([dy], [x, weight], [y], [True, True])
    counted = op.report()["multiplications backward"]
    for needs in ((True, False), (False, True)):
        one = op.backward([dy], [x, weight], [y], needs)
        assert [gradient is not None for gradient in one] == list(needs)
        assert np.array_equal(one[needs.index(True)], both[needs.index(True)])
        assert op.report()["multiplications backward"] == counted / 2 == work.im2col_work(case.sizes)


def test_runs_are_bit_identical_with_any_threads() -> None:
    """In each algorithm one thread computes a number of the result, in an order that does not depend on threads."""
    case, kept = CASES[2], THREADS[0]
    x, weight, dy = values(case, "float32")
    try:
        for algorithm in ALGORITHMS:
            op, found = operator(algorithm, case.strides, case.pads), []
            for threads in (1, 2, 2, 3):
                THREADS[0] = threads
                y = op.forward(x, weight)
                found.append([y, *op.backward([dy], [x, weight], [y], [True, True])])
            for other in found[1:]:
                assert all(map(np.array_equal, found[0], other)), algorithm
    finally:
        THREADS[0] = kept


def test_winograd_loses_digits() -> None:
    """The error of F(4x4, 3x3) is about ten times that of the definition; that of F(2x2, 3x3) is about the same."""
    case = Case((2, 32, 24, 24), (16, 32, 3, 3), pads=(1, 1, 1, 1))
    x, weight, dy = values(case, "float32")
    expected = by_torch(case, x, weight, dy)[0]
    error = {
        name: float(np.sqrt(np.mean((operator(name, case.strides, case.pads).forward(x, weight) - expected) ** 2)))
        for name in ALGORITHMS
    }
    assert 3 < error["winograd4"] / error["direct"] < 30, error
    assert error["winograd2"] < 3 * error["direct"], error
    assert error["fft"] < 3 * error["direct"], error


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_an_image_does_not_reach_another(value: float) -> None:
    """Whatever one image of a batch contains, the outputs of the others are bit-identical."""
    case = Case((3, 3, 8, 9), (5, 3, 3, 3), pads=(1, 1, 1, 1))
    x, weight, dy = values(case, "float64")
    odd = x.copy()
    odd[1, 1, 3, 4] = value
    for algorithm in ALGORITHMS:
        op = operator(algorithm, case.strides, case.pads)
        y, other = op.forward(x, weight), op.forward(odd, weight)
        assert np.array_equal(y[::2], other[::2]), algorithm
        assert not np.array_equal(y[1], other[1])
        dx, _ = op.backward([dy], [odd, weight], [other], [True, False])
        assert dx is not None
        assert np.isfinite(dx).all()


PLANTED = {
    "direct-border": (
        ConvDirect,
        "direct",
        "convolution_direct.cpp",
        "std::min(p.r, p.h - top)",
        "std::min(p.r, p.h - top - 1)",
    ),
    "fft-mirror": (ConvFFT, "fft", "convolution_fft.cpp", "o.re[lane] = a + d", "o.re[lane] = a - d"),
    "winograd-matrix": (ConvWinograd, "winograd2", "convolution_winograd.cpp", "{0, 1, -1, -1}}", "{0, 1, -1, 1}}"),
    "gradients": (ConvIm2Col, "im2col", "convolution.h", "to[x] += row[q]", "to[x] = row[q]"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_are_caught(name: str, tmp_path: Path) -> None:
    kind, algorithm, file, right, wrong = PLANTED[name]
    for path in FOLDER.iterdir():
        if path.suffix in (".h", ".cpp"):
            shutil.copy(path, tmp_path)
    text = (tmp_path / file).read_text()
    assert text.count(right) == 1
    (tmp_path / file).write_text(text.replace(right, wrong))
    planted = type(kind.__name__, (kind,), {"source": str(tmp_path / kind.source)})
    case = CASES[0]
    shares = check(planted(pads=case.pads), algorithm, case, "float64")
    assert max(shares) > 1e3, shares


@pytest.mark.parametrize("tile", [2, 4])
def test_filtering_matrices_filter_exactly(tile: int) -> None:
    """In fractions: m outputs of a filter with 3 taps, from m + 2 inputs, in one dimension and nested in two."""
    draw = np.random.default_rng(3)
    algorithm, alpha = FILTERING[tile], tile + 2
    data, kernel, inverse = (np.array(m, dtype=object) for m in (algorithm.data, algorithm.kernel, algorithm.inverse))
    assert (data.shape, kernel.shape, inverse.shape) == ((alpha, alpha), (alpha, 3), (tile, alpha))
    exact = np.vectorize(Fraction, otypes=[object])
    d = exact(draw.integers(-99, 99, (alpha, alpha)).astype(object))
    g = exact(draw.integers(-99, 99, (3, 3)).astype(object))
    found = inverse @ ((kernel @ g @ kernel.T) * (data @ d @ data.T)) @ inverse.T
    for i, j in itertools.product(range(tile), repeat=2):
        assert found[i, j] == sum(d[i + a, j + b] * g[a, b] for a in range(3) for b in range(3))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_multiplications_are_those_of_the_formulas(case: Case) -> None:
    x, weight, _ = values(case, "float64")
    sizes, counted = case.sizes, {}
    for algorithm in ALGORITHMS:
        if takes(algorithm, case):
            op = operator(algorithm, case.strides, case.pads)
            op.report()
            op.forward(x, weight)
            found = op.report()
            counted[algorithm] = found.get("multiplications", 0), found.get("multiplications of transforms", 0)
    if not x.size:
        assert set(counted.values()) == {(0, 0)}
        return
    assert counted["im2col"] == (work.im2col_work(sizes), 0)
    assert counted["direct"] == (work.direct_multiplications(sizes), 0)
    if case.pads == (0, 0, 0, 0):
        assert counted["direct"] == counted["im2col"]
    if "fft" in counted:
        assert counted["fft"] == work.fft_multiplications(sizes)
    for tile in (2, 4):
        if f"winograd{tile}" in counted:
            assert counted[f"winograd{tile}"] == work.winograd_multiplications(sizes, tile)


def test_published_work() -> None:
    """Computed by hand: an image of 16 x 16 with 64 channels, 32 filters of 3 x 3, batch 4, padding 1."""
    sizes = Convolution(batch=4, channels=64, height=16, width=16, filters=32, kernel=(3, 3), pads=(1, 1, 1, 1))
    assert (sizes.output, sizes.tiles(4), sizes.transformed) == ((16, 16), 64, (32, 32))
    assert work.direct_work(sizes) == work.im2col_work(sizes) == 4 * 32 * 256 * 64 * 9
    assert work.direct_depth(sizes) == work.im2col_depth(sizes) == 6 + 2 + 2
    images = 64 * 32 + 4 * 64 + 4 * 32
    assert work.fft_work(sizes) == 0.5 * 1024 * 10 * images + 1024 * 4 * 64 * 32
    assert work.fft_depth(sizes) == 2 * 10 + 6
    products = 64 * 32 * 64 * 36
    transforms = 64 * 32 * (6 * 9 + 36 * 3) + 64 * 64 * 2 * 216 + 32 * 64 * (36 * 4 + 6 * 16)
    assert work.winograd_work(sizes, 4) == products + transforms
    assert work.winograd_depth(sizes, 4) == 2 * 2 + 4 * 3 + 6
    # Lavin and Gray's figures for both: 36 / 16 and 144 / 36 fewer multiplications of channels, where tiles fit.
    for tile, saving in ((2, 2.25), (4, 4.0)):
        assert work.direct_work(sizes) / work.winograd_multiplications(sizes, tile)[0] == saving
    # Real images have half of the frequencies, and a complex product is four real ones: twice the published terms.
    at_frequencies, transforms = work.fft_multiplications(sizes)
    assert at_frequencies == pytest.approx(2 * 1024 * 4 * 64 * 32, rel=1 / 16)
    assert transforms < 2 * 0.5 * 1024 * 10 * images


def test_what_the_algorithms_refuse() -> None:
    for kind in (ConvFFT, ConvWinograd):
        with pytest.raises(Unsupported, match=r"strides=\(1, 2\); allowed: 1: .* remedy: ConvDirect"):
            kind(strides=(1, 2))
        kind(strides=1)
    with pytest.raises(UsageError, match=r"tile=3; allowed: 2, .* or 4"):
        ConvWinograd(tile=3)
    for wrong in ((0, 1), (1, 1, 1), "11", (1.0, 1.0)):
        with pytest.raises(UsageError, match=r"strides=.*at least 1"):
            ConvDirect(strides=wrong)  # type: ignore[arg-type]
    for wrong in (-1, (0, 0, 0)):
        with pytest.raises(UsageError, match=r"pads=.*at least 0"):
            ConvIm2Col(pads=wrong)
    image, five = np.zeros((1, 2, 6, 6)), np.zeros((1, 2, 5, 5))
    with pytest.raises(ShapeError, match="kernels of 3 x 3; remedy"):
        ConvWinograd().forward(image, five)
    with pytest.raises(ShapeError, match="a kernel that the padded image holds"):
        ConvDirect().forward(image[:, :, :4], five)
    with pytest.raises(ShapeError, match="as many channels in both"):
        ConvDirect().forward(image[:, :1], five)
    with pytest.raises(ShapeError, match="both of one element type"):
        ConvDirect().specs(d5.TensorSpec(shape=image.shape), d5.TensorSpec(shape=five.shape, dtype="float64"))
    with pytest.raises(ShapeError, match=r"an image \[N, C, H, W\]"):
        ConvDirect().forward(image[0], five)
    with pytest.raises(ShapeError, match="at least 1 x 1"):
        ConvDirect().forward(image, five[:, :, :0])
    with pytest.raises(OperatorError, match=r"deep5\.ConvWinograd .* cannot be made: .* got tile=3"):
        make_operator("deep5", "ConvWinograd", {"tile": 3})


def test_in_a_network_with_a_symbolic_batch() -> None:
    case = CASES[0]
    x, weight, _ = values(case, "float32")
    build = d5.NetworkBuilder("zoo")
    image = build.input("x", ("N", *case.x[1:]))
    kernel = build.constant("w", weight)
    made = build.op("ConvWinograd", image, kernel, domain="deep5", pads=list(case.pads), tile=4)
    network = build.network({"y": made})
    assert network.outputs["y"].shape == ("N", 4, 8, 9)
    found = d5.framework("reference").executor(network).inference({"x": x})["y"]
    assert np.array_equal(np.asarray(found), operator("winograd4", case.strides, case.pads).forward(x, weight))


@pytest.mark.parametrize("extents", [(1, 1, 1), (5, 3, 2), (13, 300, 67), (0, 4, 3), (4, 0, 3), (230, 17, 1)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_our_matrix_product(extents: tuple[int, int, int], dtype: str) -> None:
    m, k, n = extents
    draw = np.random.default_rng(7)
    a, b, dc = (draw.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
    op = MatMulBlocked()
    c = op.forward(a, b)
    da, db = op.backward([dc], [a, b], [c], [True, True])
    for found, left, right in ((c, a, b), (da, dc, b.T), (db, a.T, dc)):
        expected = left.astype(np.float64) @ right.astype(np.float64)
        magnitude = abs(left.astype(np.float64)) @ abs(right.astype(np.float64))
        assert excess(found, expected, sum_bound(left.shape[1], magnitude, dtype)) <= 1
    assert op.report() == {"multiplications": m * k * n, "multiplications backward": 2 * m * k * n}


def test_our_matrix_product_refuses() -> None:
    with pytest.raises(ShapeError, match=r"allowed: \[M, K\] and \[K, N\]"):
        MatMulBlocked().forward(np.zeros((2, 3)), np.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"allowed: \[M, K\] and \[K, N\]"):
        MatMulBlocked().forward(np.zeros(3), np.zeros((3, 3)))


def test_problems_of_the_studies() -> None:
    """Every problem runs, each size with all algorithms that support it; the titles contain work and depth."""
    found = problems.convolutions("float64")
    assert len({problem.name for problem in found}) == len(found)
    for problem in found:
        if problem.operator == "Conv":
            continue
        domain, _, name = problem.operator.partition(".")
        op = make_operator(domain, name, problem.attributes)
        (spec,) = op.specs(*problem.inputs)
        n, k, high, wide = spec.shape
        taps = problem.inputs[1].size // int(k)
        assert spec.shape[:2] == (problem.sizes["batch"], problem.sizes["filters"])
        assert f"work {problem.sizes['work']:.3g}, depth {problem.sizes['depth']}" in problem.title
        if problem.sizes["algorithm"] in ("direct", "im2col"):
            assert problem.sizes["work"] == int(n) * int(k) * int(high) * int(wide) * taps
            assert op.flops(*problem.inputs) == 2 * problem.sizes["work"]  # type: ignore[attr-defined]
    kinds = [problem.name.rpartition("-")[2] for problem in found if problem.name.startswith("size-1-")]
    assert kinds == ["own", "direct", "im2col", "fft", "winograd2", "winograd4"]
    assert [problem.name for problem in found if problem.use == "size-1"] == [f"size-1-{kind}" for kind in kinds]
    shapes = [tuple(spec.shape for spec in problem.inputs) for problem in problems.products("float32")]
    assert shapes == [((batch, 4096), (4096, 9192)) for batch in (256, 128, 64, 32, 16, 8, 4, 2, 1)]
    assert {problem.operator for problem in problems.layers("float32")} == {"Conv", "Gemm", "MaxPool"}


def test_recurrent_problems() -> None:
    """The shapes fit both operators; the titles and the guide have their operations and bytes."""
    found = problems.recurrent_layers("float32")
    assert len({problem.name for problem in found}) == len(found) == 3 * 2 * 7
    guide = " ".join((Path(__file__).parents[2] / "docs" / "how_to" / "operators.md").read_text().split())
    for problem in found:
        domain, _, name = problem.operator.rpartition(".")
        x, _, state, _ = problem.inputs
        steps, batch, hidden = map(int, x.shape)
        if domain:
            op = make_operator(domain, name, problem.attributes)
            assert op.specs(*problem.inputs)[0].shape == (steps, 1, batch, hidden)
            continue
        operations = 2 * 2 * state.size * steps * batch
        once = 4 * (2 * x.size + 2 * state.size + 2 * int(state.shape[1]))
        each = once + 4 * (steps - 1) * state.size
        assert (problem.sizes["bytes_once"], problem.sizes["bytes_per_step"]) == (once, each)
        moved = f"{quantities.size(once)} (weights in every step: {quantities.size(each)})"
        wanted = f"{name} H={hidden} T={steps} N={batch}, {quantities.count(operations, 'FLOP')}, {moved}"
        assert problem.title == wanted
        if batch == 64:
            of_one = next(other for other in found if other.name == f"{name.lower()}-1").sizes
            cells = [
                quantities.count(operations / 64, "FLOP"),
                *map(quantities.size, (4 * state.size, once, of_one["bytes_once"], each)),
            ]
            row = " | ".join([f"| {name}, {hidden} units", *cells, quantities.size(of_one["bytes_per_step"])])
            assert row in guide, row


def test_linear_scaling() -> None:
    """Seconds per sample: on one framework 1 for a batch of 4, 2 for 2, 8 for 1; on another the same for 4 and 1."""
    seconds = {("a", 4): 4.0, ("a", 2): 4.0, ("a", 1): 8.0, ("b", 4): 8.0, ("b", 1): 2.0}
    rows = [
        {"problem": f"dense-{batch}", "candidate": name, "median_s": value} for (name, batch), value in seconds.items()
    ]
    observer = LinearScaling().observer()
    assert observer.value() is None
    observer.after_timing(SimpleNamespace(rows=rows))
    assert [sample.value for sample in observer.samples()] == [12.5, 50.0, 100.0]
    assert observer.value() == 50.0
    of_one = LinearScalingOfOne().observer()
    of_one.after_timing(SimpleNamespace(rows=rows))
    assert [sample.value for sample in of_one.samples()] == [12.5, 100.0]
    assert of_one.value() == 56.25


# The same product, written without deep5.
PLAIN = """
#include "product.h"
extern "C" void plain(long m, long n, long k, const float *a, const float *b, float *c) {
  zoo::Product<float> product;
  product(m, n, k, {a, k, 1}, {b, n, 1}, c, n, false);
}
"""


def test_a_product_is_that_without_deep5(tmp_path: Path) -> None:
    """256 x 256 x 256 from NumPy: bit-identical to the same source compiled with -O3 and called directly."""
    source, library = tmp_path / "plain.cpp", tmp_path / "plain.so"
    source.write_text(PLAIN)
    call = [str(compiler(CPP)), "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", f"-I{FOLDER}"]
    subprocess.run([*call, "-o", str(library), str(source)], check=True)
    plain = ctypes.CDLL(str(library)).plain
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    c = np.empty_like(a)
    size, addresses = ctypes.c_long(256), [ctypes.c_void_p(value.ctypes.data) for value in (a, b, c)]
    plain(size, size, size, *addresses)
    assert np.array_equal(MatMulBlocked().forward(a, b), c)
