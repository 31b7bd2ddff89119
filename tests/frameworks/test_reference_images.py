"""The reference's operators on images and windows, in cases that ONNX's own suite does not cover."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from test_reference_kernels import network_of, run

from deep5.core.errors import NetworkError, ShapeError, Unsupported
from deep5.frameworks.reference.emit import compile_network
from deep5.frameworks.reference.kernels.decoding import decoded
from deep5.frameworks.reference.kernels.memory import Scratch
from deep5.networks import Network, NetworkBuilder

RNG = np.random.default_rng(17)
# float32: some operations of one unit in the last place, on values of size 1; float64: the same
TOLERANCE = {"float32": 2e-5, "float64": 1e-10}


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def evaluated(op: str, values: tuple[Any, ...], outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    network = network_of(op, values, outputs, False, **attributes)
    return run(network, {f"x{i}": value for i, value in enumerate(values) if value is not None})


def compared(op: str, values: tuple[Any, ...], outputs: int = 1, **attributes: Any) -> None:
    """Matches ONNX's own implementation, which is independent of deep5."""
    network = network_of(op, values, outputs, False, **attributes)
    feeds = {f"x{i}": value for i, value in enumerate(values) if value is not None}
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(network.to_onnx()).run(None, feeds)
    for got, want in zip(run(network, feeds), expected, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        tolerance = TOLERANCE.get(str(want.dtype), 0)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
def test_resize(mode: str, coordinates: str) -> None:
    """Computed scales and sizes, up and down, in both precisions, axis by axis."""
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, "axes": [2, 1]}
    roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil") if mode == "nearest" else ("floor",)
    for rounding, dtype in zip(roundings, itertools.cycle(["float32", "float64"])):
        x = normal(2, 5, 6, dtype=dtype)
        compared("Resize", (x, None, np.array([1.75, 0.5], np.float32)), **attributes, nearest_mode=rounding)
        compared("Resize", (x, None, None, np.array([4, 9])), **attributes, nearest_mode=rounding)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_with_its_other_attributes(mode: str) -> None:
    x, down, up = normal(1, 7, 9), np.array([1, 0.4, 0.6], np.float32), np.array([1, 1.5, 2.5], np.float32)
    for scales in (down, up):
        compared("Resize", (x, None, scales), mode=mode, exclude_outside=1, cubic_coeff_a=-0.5)
        compared("Resize", (x, None, scales), mode=mode, antialias=1)
    roi = np.array([0, 0.25, -0.1, 1, 0.75, 1.2], np.float32)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 3.0}
    compared("Resize", (x, roi, None, np.array([1, 4, 20])), mode=mode, **attributes)


def test_resize_by_a_third() -> None:
    """In float32: the intended element, at any distance from the start."""
    x = np.arange(3 * 4096.0)
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    (got,) = evaluated("Resize", (x, None, np.array([1 / 3], np.float32)), **attributes)
    np.testing.assert_array_equal(got, x[::3])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_the_old_operators_count_from_the_first_element(mode: str) -> None:
    """As specified: the element i of the result lies at i / scale."""
    x = normal(1, 1, 1, 4)
    for op, opset in (("Upsample", 9), ("Resize", 10)):
        text = f'''<ir_version: 4, opset_import: ["": {opset}]> g (float[1,1,1,4] x) => (float[1,1,1,10] y)
            <float[4] s = {{1.0, 1.0, 1.0, 2.5}}> {{ y = {op} <mode = "{mode}"> (x, s) }}'''
        (got,) = run(Network.from_onnx(onnx.parser.parse_model(text)), {"x": x})
        at = np.arange(10) / 2.5
        want = x[0, 0, 0, at.astype(int)] if mode == "nearest" else np.interp(at, np.arange(4), x[0, 0, 0])
        np.testing.assert_allclose(got[0, 0, 0], want, rtol=1e-6)


def test_resize_of_axes_from_behind() -> None:
    x, scales = normal(2, 5, 6), np.array([2.5, 0.5], np.float32)
    want = evaluated("Resize", (x, None, scales), mode="linear", axes=[2, 1])
    np.testing.assert_array_equal(evaluated("Resize", (x, None, scales), mode="linear", axes=[-1, -2]), want)


def test_resize_of_whole_numbers() -> None:
    """A constant stays constant, with or without rounding, and an overshoot ends at the largest number."""
    flat = np.full((1, 1, 7), 3, np.uint8)
    for mode in ("linear", "cubic"):
        (got,) = evaluated("Resize", (flat, None, np.array([1, 1, 2.7], np.float32)), mode=mode)
        np.testing.assert_array_equal(got, np.full((1, 1, 18), 3, np.uint8))
    edge = np.array([[[0, 0, 255, 255]]], np.uint8)
    (got,) = evaluated("Resize", (edge, None, np.array([1, 1, 3], np.float32)), mode="cubic")
    assert got.min() == 0
    assert got.max() == 255
    assert (np.diff(got[0, 0].astype(int)) >= 0).all()


def test_a_resize_to_the_same_size_has_memory_of_its_own() -> None:
    """The next node writes to the result in place."""
    build = NetworkBuilder("same", dtype="float32")
    x = build.input("x", (1, 2, 3))
    same = build.op("Resize", x, None, build.constant("s", np.ones(3, np.float32)), mode="linear")
    network = build.network({"y": build.op("Neg", same)})
    fed = normal(1, 2, 3)
    before = fed.copy()
    np.testing.assert_array_equal(run(network, {"x": fed})[0], -before)
    np.testing.assert_array_equal(fed, before)


def test_other_resizes_are_refused() -> None:
    with pytest.raises(ShapeError, match="Resize: got 2 factors or sizes; expected 3"):
        evaluated("Resize", (normal(1, 2, 3), None, np.ones(2, np.float32)))
    with pytest.raises(ShapeError, match="allowed: factors or sizes above 0"):
        evaluated("Resize", (normal(1, 2, 3), None, np.array([1, -1, 1], np.float32)))
    for name, got in (("mode", "spline"), ("nearest_mode", "up"), ("coordinate_transformation_mode", "tf_half_pixel")):
        network = network_of("Resize", (normal(1, 2, 3), None, np.ones(3, np.float32)), 1, False, **{name: got})
        with pytest.raises(Unsupported, match=rf"Resize.*got {name}='{got}'; allowed: "):
            compile_network(network, {}, Scratch())


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    """In one, two and three dimensions, also far outside; in two compared with PyTorch, if installed."""
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    for space in ((5,), (4, 5), (3, 4, 2)):
        if mode == "cubic" and len(space) == 3:
            continue  # neither of the two supports it
        # ONNX's own computes in float32
        x = normal(2, 3, *space, dtype="float32" if len(space) == 1 else "float64")
        grid = (3 * RNG.uniform(-1, 1, (2, *(extent + 1 for extent in space), len(space)))).astype(x.dtype)
        if len(space) > 1:
            torch = pytest.importorskip("torch")
            known = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
            given = torch.from_numpy(x), torch.from_numpy(grid)
            want = torch.nn.functional.grid_sample(*given, known, padding, bool(align)).numpy()
            np.testing.assert_allclose(evaluated("GridSample", (x, grid), **attributes)[0], want, atol=1e-10)
        elif (mode, padding) != ("cubic", "border"):  # ONNX's implementation clamps the position, PyTorch's the pixels
            compared("GridSample", (x, grid), **attributes)


def test_grid_sample_of_odd_places() -> None:
    x = normal(1, 1, 2, 3)
    grid = np.array([[[[np.nan, 0], [1e30, 0], [-np.inf, 0]]]], np.float32)
    (got,) = evaluated("GridSample", (x, grid))
    np.testing.assert_array_equal(got[0, 0, 0], [np.nan, 0, 0])
    (got,) = evaluated("GridSample", (x, grid[:, :, 1:]), padding_mode="border")
    np.testing.assert_allclose(got[0, 0, 0], x[0, 0, :, [2, 0]].mean(axis=1), rtol=1e-6)
    (got,) = evaluated("GridSample", (np.full((1, 1, 4, 4), 7, np.int32), 0.6 * grid[:, :, 1:].clip(-1, 1)))
    np.testing.assert_array_equal(got, np.full((1, 1, 1, 2), 7, np.int32))


TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"strides": 2, "dilations": 2},
    {"strides": 3, "auto_pad": "SAME_UPPER"},
    {"strides": 2, "auto_pad": "SAME_LOWER"},
    {"strides": 2, "output_padding": 1, "pads": 1},
    {"strides": 3, "output_shape": 10},
]


@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolution_is_the_sum_of_its_windows(options: dict[str, Any], rank: int) -> None:
    """Each element of x adds its own copy of the weights; in groups, and over any number of axes."""
    attributes: dict[str, Any] = {
        name: number if isinstance(number, str) else [number] * (2 * rank if name == "pads" else rank)
        for name, number in options.items()
    }
    x, w, bias = normal(2, 4, *[3] * rank), normal(4, 2, *[3] * rank), normal(4)
    (got,) = evaluated("ConvTranspose", (x, w, bias), group=2, **attributes)
    stride, gap, extra = options.get("strides", 1), options.get("dilations", 1), options.get("output_padding", 0)
    full = 2 * stride + 2 * gap + 1 + extra
    if "auto_pad" in options or "output_shape" in options:
        extent = options.get("output_shape", 3 * stride)
        total = max(full - extent, 0)
        begin = total // 2 if options.get("auto_pad") == "SAME_UPPER" else total - total // 2
    else:
        begin = options.get("pads", 0)
        extent = full - 2 * begin
    want = np.zeros((2, 4, *[20] * rank))
    for at in np.ndindex(*[3] * rank):
        place = tuple(slice(stride * a, stride * a + 2 * gap + 1, gap) for a in at)
        for group in range(2):
            part = np.tensordot(x[(slice(None), slice(2 * group, 2 * group + 2), *at)], w[2 * group : 2 * group + 2], 1)
            want[(slice(None), slice(2 * group, 2 * group + 2), *place)] += part
    want = want[(..., *[slice(begin, begin + extent)] * rank)] + bias.reshape(-1, *[1] * rank)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)  # float32 sums of some 50 products of size 1


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_deformable_convolution_that_moves_nothing_is_a_convolution(rank: int) -> None:
    x, w, bias = normal(2, 4, *[6] * rank), normal(6, 2, *[3] * rank), normal(6)
    window = {"strides": [2] * rank, "pads": [2] * 2 * rank, "dilations": [2] * rank, "group": 2}
    (want,) = evaluated("Conv", (x, w, bias), **window)
    offset = np.zeros((2, 2 * 3**rank * rank, *want.shape[2:]), np.float32)
    mask = np.ones((2, 2 * 3**rank, *want.shape[2:]), np.float32)
    (got,) = evaluated("DeformConv", (x, w, offset, bias, mask), offset_group=2, **window)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)  # sums of up to 54 products of size 1
    (got,) = evaluated("DeformConv", (x, w, offset, None, 0.5 * mask), offset_group=2, **window)
    np.testing.assert_allclose(2 * got, want - bias.reshape(-1, *[1] * rank), rtol=1e-4, atol=1e-4)


def test_a_deformable_convolution_moves_its_elements() -> None:
    x, w = normal(1, 2, 6, 7), np.ones((1, 2, 1, 1), np.float32)
    offset = np.zeros((1, 2, 6, 7), np.float32)
    offset[:, 0], offset[:, 1] = 1, -0.5
    (got,) = evaluated("DeformConv", (x, w, offset))
    wide = np.pad(x, ((0, 0), (0, 0), (0, 1), (1, 0)))
    want = (0.5 * (wide[:, :, 1:, 1:] + wide[:, :, 1:, :-1])).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)  # float32 sums of four


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float32", "float64"])
def test_maxima_of_every_type(dtype: str) -> None:
    x = RNG.permutation(np.arange(-60, 60) if dtype != "uint8" else np.arange(120)).reshape(1, 2, 6, 10).astype(dtype)
    y, place = evaluated("MaxPool", (x,), 2, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], storage_order=0)
    np.testing.assert_array_equal(x.reshape(-1)[place], y)
    assert y.dtype == x.dtype
    _, other = evaluated("MaxPool", (x,), 2, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], storage_order=1)
    np.testing.assert_array_equal(x.transpose(0, 1, 3, 2).reshape(-1)[other], y)


def test_a_nan_is_the_maximum_and_has_a_place() -> None:
    x = np.array([[[1, np.nan, 3, 4, 5, 6]]], np.float32)
    y, place = evaluated("MaxPool", (x,), 2, kernel_shape=[3], strides=[3])
    np.testing.assert_array_equal(y[0, 0], [np.nan, 6])
    np.testing.assert_array_equal(place[0, 0], [1, 5])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_windows(p: int) -> None:
    x = normal(2, 3, 4, 6)
    (got,) = evaluated("LpPool", (x,), kernel_shape=[2, 3], strides=[2, 3], p=p)
    blocks = np.abs(x.astype(np.float64)).reshape(2, 3, 2, 2, 2, 3) ** p
    np.testing.assert_allclose(got, blocks.sum((3, 5)) ** (1 / p), rtol=1e-5)  # float32 powers
    (got,) = evaluated("GlobalLpPool", (x,), p=p)
    np.testing.assert_allclose(got, (np.abs(x) ** p).sum((2, 3), keepdims=True) ** (1 / p), rtol=1e-5)


def test_windows_that_do_not_fit_and_places_outside_are_refused() -> None:
    build = NetworkBuilder("large")
    network = build.network({"y": build.op("MaxPool", build.input("x", (1, 1, "L")), kernel_shape=[5])})
    with pytest.raises(ShapeError, match="does not fit"):
        run(network, {"x": normal(1, 1, 2)})
    with pytest.raises(NetworkError, match="MaxUnpool: an index is outside the result; allowed: 0 to 3"):
        evaluated("MaxUnpool", (normal(1, 1, 2), np.array([[[0, 4]]])), kernel_shape=[2], strides=[2])


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_pad(mode: str, dtype: str) -> None:
    """Sizes and signs of all kinds, computed; also farther than one reflection."""
    x = (normal(3, 4) > 0 if dtype == "bool" else 9 * normal(3, 4)).astype(dtype)
    for widths in (((1, 2), (0, 3)), ((5, 7), (9, 8)), ((-1, 2), (3, -2)), ((0, 0), (-1, -1)), ((-1, -1), (0, 1))):
        pads = np.array([side[i] for i in range(2) for side in widths])
        kept = x[tuple(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True))]
        want = np.pad(kept, [(max(a, 0), max(b, 0)) for a, b in widths], mode=mode)  # type: ignore[call-overload]
        np.testing.assert_array_equal(evaluated("Pad", (x, pads), mode=mode)[0], want)


def test_pads_that_cut_all() -> None:
    x = np.arange(5.0)
    (got,) = evaluated("Pad", (x, np.array([-6, 3]), np.array(7.0)))
    np.testing.assert_array_equal(got, [7, 7])
    with pytest.raises(ShapeError, match="no size below 0"):
        evaluated("Pad", (x, np.array([-3, -3])))
    with pytest.raises(ShapeError, match="allowed: mode='constant'"):
        evaluated("Pad", (x, np.array([-5, 1])), mode="edge")


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("shift", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(ratio: int, shift: str, mode: str) -> None:
    """Boxes of many sizes, each with its own grid, partly outside."""
    x, rois = normal(2, 3, 7, 8), np.array([[0, 0, 3, 3], [1, 2, 9.5, 6], [-3, -2, 5, 4], [2, 2, 2.5, 2.5]], np.float32)
    attributes = {"output_height": 2, "output_width": 3, "sampling_ratio": ratio, "spatial_scale": 0.75, "mode": mode}
    compared("RoiAlign", (x, rois, np.array([0, 1, 1, 0])), coordinate_transformation_mode=shift, **attributes)
    with pytest.raises(NetworkError, match="RoiAlign: got a region of the image 2; allowed: 0 to 1"):
        evaluated("RoiAlign", (x, rois[:1], np.array([2])))


def test_max_roi_pool() -> None:
    x = normal(2, 3, 6, 8)
    rois = np.array([[1, 2, 1, 5, 4], [0, -3, -3, 0, 0], [0, 12, 12, 14, 14]], np.float32)
    (got,) = evaluated("MaxRoiPool", (x, rois), pooled_shape=[2, 2], spatial_scale=1.0)
    want = x[1, :, 1:5, 2:6].reshape(3, 2, 2, 2, 2).max((2, 4))
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1, :, 1, 1], x[0, :, 0, 0])
    np.testing.assert_array_equal(got[1, :, 0, 0], np.zeros(3))  # the whole bin is outside
    np.testing.assert_array_equal(got[2], np.zeros((3, 2, 2)))


def test_boxes_with_equal_scores_come_in_their_order() -> None:
    boxes = np.array([[[0, 0, 1, 1], [5, 5, 6, 6], [0, 0, 1, 1], [9, 9, 9, 9]]], np.float32)
    scores = np.array([[[0.5, 0.5, 0.5, 0.1]]], np.float32)
    given = (boxes, scores, np.array([3]), np.array([0.5], np.float32))
    np.testing.assert_array_equal(evaluated("NonMaxSuppression", given)[0], [[0, 0, 0], [0, 0, 1], [0, 0, 3]])
    (got,) = evaluated("NonMaxSuppression", (*given, np.array([0.4], np.float32)))
    np.testing.assert_array_equal(got, [[0, 0, 0], [0, 0, 1]])
    # As in ONNX Runtime, a score equal to the threshold is removed.
    assert evaluated("NonMaxSuppression", (*given, np.array([0.5], np.float32)))[0].shape == (0, 3)
    assert evaluated("NonMaxSuppression", (boxes, scores))[0].shape == (0, 3)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_undoes_depth_to_space(mode: str) -> None:
    x = normal(2, 12, 3, 2)
    y = x.reshape(2, 2, 2, 3, 3, 2) if mode == "DCR" else x.reshape(2, 3, 2, 2, 3, 2)
    (got,) = evaluated("DepthToSpace", (x,), blocksize=2, mode=mode)
    channel = y[:, 1, 0, 2] if mode == "DCR" else y[:, 2, 1, 0]
    np.testing.assert_array_equal(got[:, 2, 1::2, ::2], channel)
    if mode == "DCR":  # before opset 28 SpaceToDepth has no mode
        np.testing.assert_array_equal(evaluated("SpaceToDepth", (got,), blocksize=2)[0], x)


def test_affine_grid_that_moves_nothing() -> None:
    for space in ((3, 4), (2, 3, 4)):
        theta = np.eye(len(space), len(space) + 1)[None]
        (grid,) = evaluated("AffineGrid", (theta, np.array([1, 1, *space])))
        x = normal(1, 2, *space, dtype="float64")
        np.testing.assert_allclose(evaluated("GridSample", (x, grid))[0], x, atol=1e-12)


def test_bytes_that_are_no_image_give_an_empty_one() -> None:
    pytest.importorskip("PIL")
    assert decoded(np.frombuffer(b"none", np.uint8), pixel_format="RGB").shape == (0, 0, 3)
    assert decoded(np.zeros(0, np.uint8), pixel_format="Grayscale").shape == (0, 0, 1)


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"Col2Im: got columns of shape .* expected 16 blocks of 4 elements a channel"):
        evaluated("Col2Im", (normal(1, 4, 15), np.array([5, 5]), np.array([2, 2])))
