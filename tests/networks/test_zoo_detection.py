"""The detectors of the zoo: runtimes agree, losses follow their definitions, predictions decode targets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.networks.zoo.anchors import anchor_boxes
from deep5.training.detection import decoded

NETWORKS: dict[str, tuple[Callable[..., d5.Network], Any]] = {
    "ssd": (d5.networks.ssd, d5.MatchAnchors(classes=3)),
    "center_net": (d5.networks.center_net, d5.DrawCenters(classes=3)),
}
BOXES = np.array([[[2, 3, 12, 17], [20, 8, 30, 28]], [[4, 4, 12, 14], [-1, -1, -1, -1]], [[-1] * 4, [-1] * 4]])
CLASSES = np.array([[2, 0], [1, -1], [-1, -1]])


def feed(network: d5.Network, transform: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    samples = {"input": rng.random((3, 1, 32, 32)), "boxes": BOXES.astype(np.float64), "classes": CLASSES}
    made = transform(samples, None, 0)
    return {name: made[name].astype(spec.dtype) for name, spec in network.inputs.items()}


def run(network: d5.Network, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs by ONNX's reference, in float64."""
    return dict(zip(network.outputs, ReferenceEvaluator(network.to_onnx()).run(None, inputs), strict=True))


def made(name: str, dtype: str = "float64", **arguments: Any) -> tuple[d5.Network, dict[str, np.ndarray]]:
    network = NETWORKS[name][0](image=32, classes=3, width=4, dtype=dtype, seed=1, **arguments)
    return network, feed(network, NETWORKS[name][1])


@pytest.mark.parametrize("name", NETWORKS)
def test_two_runtimes_agree(name: str) -> None:
    """ONNX Runtime in float32 and ONNX's reference in float64, from the same initial weights."""
    network, inputs = made(name)
    expected = run(network, inputs)
    single, inputs = made(name, "float32")
    proto = single.to_onnx()
    onnx.checker.check_model(proto, full_check=True)
    assert {spec.dtype for spec in single.parameter_specs.values()} == {"float32"}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    names = {one.name for one in session.get_inputs()}
    found = session.run(None, {key: array for key, array in inputs.items() if key in names})
    for key, value in zip(single.outputs, found, strict=True):
        # Ten float32 layers on numbers of size one; boxes are up to 32.
        np.testing.assert_allclose(value, expected[key], rtol=1e-4, atol=1e-4)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def test_the_loss_of_ssd_is_its_definition() -> None:
    network, inputs = made("ssd")
    outputs = run(network, inputs)
    # The network's raw offsets follow from its boxes.
    anchors = anchor_boxes(32)
    size = anchors[:, 2:] - anchors[:, :2]
    found = outputs["predicted_boxes"]
    shift = ((found[..., :2] + found[..., 2:]) / 2 - (anchors[:, :2] + anchors[:, 2:]) / 2) / size / 0.1
    offsets = np.concatenate([shift, np.log((found[..., 2:] - found[..., :2]) / size) / 0.2], axis=-1)
    p, y = outputs["predicted_scores"], inputs["class_targets"]
    focal = np.where(y == 1, -0.25 * (1 - p) ** 2 * np.log(p), -0.75 * p**2 * np.log(1 - p))
    difference = np.abs(offsets - inputs["offset_targets"])
    smooth = np.where(difference < 1, difference**2 / 2, difference - 0.5)
    positive = y.max(axis=2)
    assert (difference[positive == 1] > 1).any(), "both branches are used"
    assert (difference[positive == 1] < 1).any()
    sums = focal.sum(axis=(1, 2)) + (smooth.sum(axis=2) * positive).sum(axis=1)
    # float64; logarithms of numbers that were rounded when the boxes were decoded.
    assert outputs["loss"] == pytest.approx(np.mean(sums / np.maximum(positive.sum(axis=1), 1)), rel=1e-9)


def test_the_loss_of_center_net_is_its_definition() -> None:
    """With a head that is constant: its probability of each class and its sizes are known."""
    network, inputs = made("center_net")
    values = np.array([1.5, 2.5, 0.25, 0.75])
    network = network.with_values(
        constant_head(network, "heat", [-1.0, 0.5, 0.0]) | constant_head(network, "size", values)
    )
    y = inputs["heat_targets"]
    p = sigmoid(np.array([-1.0, 0.5, 0.0]))[:, None, None]
    focal = np.where(y == 1, -((1 - p) ** 2) * np.log(p), -((1 - y) ** 4) * p**2 * np.log(1 - p))
    at_centers = y.max(axis=1, keepdims=True) == 1
    error = np.abs(values[:, None, None] - inputs["size_targets"]) * at_centers
    sums = focal.sum(axis=(1, 2, 3)) + (error * np.array([0.1, 0.1, 1, 1])[:, None, None]).sum(axis=(1, 2, 3))
    objects = np.array([2, 1, 1])  # the third image has none
    assert run(network, inputs)["loss"] == pytest.approx(np.mean(sums / objects), rel=1e-12)  # float64


def constant_head(network: d5.Network, name: str, bias: Any) -> dict[str, np.ndarray]:
    weight = np.zeros(network.parameter_specs[f"{name}.weight"].shape)
    return {f"{name}.weight": weight, f"{name}.bias": np.asarray(bias, dtype=np.float64)}


def test_center_net_decodes_its_maps() -> None:
    """The box of the cell in row 2 and column 5, from a width, a height and an offset in cells of four pixels."""
    network, inputs = made("center_net")
    network = network.with_values(constant_head(network, "size", [2.0, 3.0, 0.5, 0.25]))
    found = run(network, inputs)["predicted_boxes"]
    # The center is at (22, 9), and the size 8 x 12.
    assert found[0, 2 * 8 + 5].tolist() == pytest.approx([18, 3, 26, 15])


def test_center_net_keeps_only_peaks() -> None:
    network, inputs = made("center_net")
    scores = run(network, inputs)["predicted_scores"].reshape(3, 8, 8, 3)
    padded = np.pad(scores, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    kept = scores > 0
    assert 0 < kept.mean() < 0.5
    assert (scores[kept] == windows.max(axis=(-1, -2))[kept]).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_probabilities_begin_small(name: str) -> None:
    network, inputs = made(name)
    scores = run(network, inputs)["predicted_scores"]
    prior = {"ssd": 0.01, "center_net": 0.1}[name]
    assert scores[scores > 0].mean() == pytest.approx(prior, rel=0.2)


def test_ssd_decodes_offsets_as_targets_are_encoded() -> None:
    """With constant offsets, all boxes are those that the inverse of the encoding gives."""
    network, inputs = made("ssd")
    offset = np.array([1.0, -2.0, 0.5, 1.5])
    values = [constant_head(network, f"offsets{number}", np.tile(offset, 4)) for number in (1, 2)]
    found = run(network.with_values(values[0] | values[1]), inputs)["predicted_boxes"]
    anchors = anchor_boxes(32)
    expected = decoded(np.broadcast_to(offset, anchors.shape), anchors)
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-12, atol=1e-12)  # float64


def test_each_anchor_predicts_the_targets_of_its_row() -> None:
    """Biases that differ by anchor of a cell and by class are at those anchors' rows, in the order of the targets."""
    network, inputs = made("ssd")
    bias = np.arange(12.0) / 10  # of anchor 0 for three classes, of anchor 1, …
    values = [constant_head(network, f"classes{number}", bias + 2 * number) for number in (1, 2)]
    found = run(network.with_values(values[0] | values[1]), inputs)["predicted_scores"]
    fine, coarse = (
        np.tile(sigmoid(bias + 2 * number).reshape(4, 3), (cells, 1)) for number, cells in ((1, 64), (2, 16))
    )
    np.testing.assert_allclose(found, np.broadcast_to(np.concatenate([fine, coarse]), found.shape), rtol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_only_layers_have_parameters(name: str) -> None:
    """No constant of the anchors or the loss is trained."""
    network, _ = made(name)
    layers = ("conv", "classes", "offsets", "heat", "size", "enlarge")
    assert all(parameter.startswith(layers) for parameter in network.parameter_specs)
    # Seven convolutions with batch normalization: 3 * 3 * sum of in * out, and scale and bias for each.
    channels = [1, 4, 8, 8, 8, 16, 16, 16]
    body = sum(9 * one * other + 2 * other for one, other in pairwise(channels))
    head = {
        "ssd": sum((9 * width + 1) * 4 * (3 + 4) for width in (8, 16)),
        "center_net": 16 * 8 * 4 + 2 * (9 * 8 * 8 + 8) + (8 + 1) * (3 + 4),
    }
    assert sum(spec.size for spec in network.parameter_specs.values()) == body + head[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_losses_are_means_over_samples(name: str) -> None:
    network, inputs = made(name)
    # Batch normalization uses its stored statistics here.
    whole = run(network, inputs)["loss"]
    parts = [run(network, {key: array[one : one + 1] for key, array in inputs.items()})["loss"] for one in range(3)]
    assert whole == pytest.approx(np.mean(parts), rel=1e-12)  # float64


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image": 36}, r"got image = 36; allowed: a multiple of 8, the largest stride"),
        ({"classes": 0}, r"got classes = 0; allowed: an integer of at least 1"),
        ({"width": 2.5}, r"got width = 2.5"),
        ({"channels": True}, r"got channels = True"),
        ({"dtype": "float16"}, r"unknown dtype 'float16' of a network"),
    ],
)
def test_wrong_arguments_are_rejected(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(d5.UsageError, match=message):
        NETWORKS[name][0](**arguments)


def test_scales_of_other_kinds_are_rejected() -> None:
    with pytest.raises(d5.UsageError, match=r"anchors with scales \[1\]; allowed: three increasing numbers"):
        d5.networks.ssd(scales=[1])
