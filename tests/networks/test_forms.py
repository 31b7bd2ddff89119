"""The two forms of a network, and dropout's masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import Unsupported
from deep5.networks import NetworkBuilder, masks, ones, zeros
from deep5.networks.masks import dropout_mask
from deep5.networks.philox import philox
from deep5.networks.run_modes import Forms, evaluation_form, training_form


def _network(ratio: float = 0.25, dtype: str = "float32") -> Any:
    build = NetworkBuilder("forms", dtype=dtype, seed=1)
    x, label = build.input("input", ("N", 3, 4, 4)), build.input("label", ("N",), "int64")
    x = build.op("Conv", x, build.parameter("conv", (2, 3, 3, 3)), kernel_shape=[3, 3], pads=[1] * 4)
    statistics = [build.parameter(name, (2,), init) for name, init in (("mean", zeros), ("variance", ones))]
    affine = [build.parameter(name, (2,), init) for name, init in (("scale", ones), ("bias", zeros))]
    x = build.op("BatchNormalization", x, *affine, *statistics, momentum=0.75, epsilon=2**-10)
    x = build.op("Flatten", x)
    x = build.op("Dropout", x, build.constant("ratio", np.array(ratio, dtype=dtype)))
    x = build.op("Gemm", x, build.parameter("fc", (5, 32)), transB=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})


def _feed(dtype: str = "float32", size: int = 6) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {"input": draw.standard_normal((size, 3, 4, 4)).astype(dtype), "label": draw.integers(0, 5, size)}


def test_philox_gives_the_published_words() -> None:
    """Known answers of Philox4x32-10 for all zeros and all ones, from the authors' library Random123."""
    words = {
        0: ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"],
        2**64 - 1: ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"],
    }
    for bits, want in words.items():
        found = philox(np.array([bits], dtype=np.uint64), high=bits, key=bits)
        assert (found.dtype, found.shape) == (np.uint32, (4, 1))
        assert [f"{word:08x}" for word in found[:, 0]] == want


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (3,), (64,), (65,), (7, 33, 5), (0, 4)])
def test_the_compiled_mask_is_the_written_one(
    shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: dict[str, Any] = {"ratio": 0.3, "seed": 5, "step": 2**32 + 9, "node": "Dropout_1", "dtype": dtype}
    compiled = dropout_mask(shape, **call)
    monkeypatch.setattr(masks, "_compiled", lambda dtype: None)
    written = dropout_mask(shape, **call)
    assert compiled.dtype == dtype
    assert compiled.shape == shape
    np.testing.assert_array_equal(compiled, written)


def test_masks_depend_on_seed_step_and_node_and_meet_their_ratio() -> None:
    call: dict[str, Any] = {"ratio": 0.3, "seed": 0, "step": 0, "node": "a", "dtype": "float32"}
    first = dropout_mask((100_000,), **call)
    np.testing.assert_array_equal(first, dropout_mask((100_000,), **call))
    assert set(np.unique(first).tolist()) == {0.0, float(np.float32(1 / 0.7))}
    # The standard deviation of the share is sqrt(0.21 / 1e5) = 0.0015; four of them.
    assert np.mean(first == 0) == pytest.approx(0.3, abs=0.006)
    for change in ({"seed": 1}, {"step": 1}, {"node": "b"}):
        other = dropout_mask((100_000,), **{**call, **change})
        # Independent masks agree in 0.09 + 0.49 of the elements.
        assert np.mean((first == 0) == (other == 0)) == pytest.approx(0.58, abs=0.007)
    # A longer mask begins with the shorter one's bits: the stream does not depend on the shape.
    np.testing.assert_array_equal(dropout_mask((7, 11), **call).ravel(), first[:77])


def test_evaluation_has_neither_masks_nor_new_statistics() -> None:
    network = _network()
    form = evaluation_form(network)
    assert "Dropout" not in {node.op_type for node in form.nodes}
    assert list(form.inputs) == ["input", "label"]
    assert list(form.outputs) == ["logits", "loss"]
    assert list(form.parameter_specs) == list(network.parameter_specs)


def test_training_takes_masks_and_gives_statistics() -> None:
    network = _network()
    form = training_form(network)
    (mask,) = form.masks
    assert (mask.shape, mask.ratio, mask.dtype) == (("N", 32), 0.25, "float32")
    assert list(form.network.inputs) == ["input", "label", mask.name]
    assert form.statistics == {"mean": "new:mean", "variance": "new:variance"}
    assert list(form.network.outputs) == ["logits", "loss", "new:mean", "new:variance"]
    assert list(form.network.parameter_specs) == list(network.parameter_specs)
    (drawn,) = form.draw({"N": 6}, d5.StepInfo(step=3, seed=7))
    np.testing.assert_array_equal(
        drawn, dropout_mask((6, 32), ratio=0.25, seed=7, step=3, node=mask.node, dtype="float32")
    )


def test_a_network_without_either_has_one_form() -> None:
    network = d5.networks.mlp(features=3, hidden=2, classes=2)
    assert evaluation_form(network) is network
    forms = Forms(network, d5.framework("reference"))
    assert forms.training.network is forms.evaluation


def test_dropout_of_nothing_needs_no_mask() -> None:
    assert training_form(_network(ratio=0.0)).masks == ()


def test_refusals() -> None:
    with pytest.raises(Unsupported, match=r"ratio 1\.0; allowed"):
        training_form(_network(ratio=1.0))


@pytest.mark.parametrize("name", ["reference", "pytorch", "jax", "tensorflow", "onnxruntime"])
def test_a_mask_that_somebody_reads_says_what_is_kept(name: str) -> None:
    build = NetworkBuilder("reads")
    x = build.input("x", ("N", 3))
    y, mask = build.op("Dropout", x, outputs=2)
    network = build.network({"y": y, "mask": mask, "number": build.op("Cast", mask, to=1)})
    executor, ones = d5.framework(name).executor(network, seed=3), np.ones((20, 3), np.float32)
    for training in (False, True):
        found = {key: d5.to_numpy(value) for key, value in executor.inference({"x": ones}, training=training).items()}
        assert found["mask"].dtype == bool
        np.testing.assert_array_equal(found["mask"], found["y"] != 0)
        np.testing.assert_array_equal(found["mask"], found["number"])
        assert found["mask"].all() != training


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["reference", "pytorch", "jax", "tensorflow", "onnxruntime"])
def test_training_and_evaluation_mean_what_the_definitions_say(name: str, dtype: str) -> None:
    """Batch normalization by ONNX's definition and dropout by its mask, written in NumPy, against every back-end."""
    framework = d5.framework(name)
    network, feed = _network(dtype=dtype), _feed(dtype)
    if (name, dtype) == ("onnxruntime", "float64"):
        with pytest.raises(Unsupported, match="Conv"):  # it has no float64 convolution
            framework.executor(network)
        return
    executor = framework.executor(network, seed=11)
    start = executor.state_dict()
    info = d5.StepInfo(step=4, batch_size=6, seed=11)
    images = d5.to_numpy(
        d5.framework("reference").executor(_convolution(network, dtype)).inference({"input": feed["input"]})["y"]
    )
    mean, variance = images.mean(axis=(0, 2, 3)), images.var(axis=(0, 2, 3))
    mask = dropout_mask((6, 32), ratio=0.25, seed=11, step=4, node=training_form(network).masks[0].node, dtype=dtype)

    def logits(mean: Any, variance: Any, mask: Any) -> Any:
        normal = (images - mean[:, None, None]) / np.sqrt(variance[:, None, None] + 2**-10)
        return (normal.reshape(6, -1) * mask) @ start["fc"].T

    tolerance = 1e-12 if dtype == "float64" else 2e-5  # sums of 27 and of 32 products, in another order
    for _ in range(2):  # a call in training changes later evaluation only through the statistics
        executor.load_state_dict(start)
        plain = d5.to_numpy(executor.inference(feed)["logits"])
        np.testing.assert_allclose(plain, logits(np.zeros(2), np.ones(2), 1.0), rtol=0, atol=tolerance)
        np.testing.assert_array_equal(executor.state_dict()["mean"], start["mean"])
        trained = d5.to_numpy(executor.inference(feed, training=True, info=info)["logits"])
        np.testing.assert_allclose(trained, logits(mean, variance, mask), rtol=0, atol=tolerance)
        after = executor.state_dict()
        # ONNX: new = old * momentum + batch * (1 - momentum), with the population variance.
        np.testing.assert_allclose(after["mean"], 0.25 * mean, rtol=0, atol=tolerance)
        np.testing.assert_allclose(after["variance"], 0.75 + 0.25 * variance, rtol=0, atol=tolerance)
    executor.load_state_dict(start)
    back = d5.to_numpy(executor.inference_and_backprop(feed, info=info)["logits"])
    np.testing.assert_array_equal(back, trained) if name == "reference" else np.testing.assert_allclose(
        back, trained, rtol=0, atol=tolerance
    )
    np.testing.assert_allclose(executor.state_dict()["variance"], 0.75 + 0.25 * variance, rtol=0, atol=tolerance)


def _convolution(network: Any, dtype: str) -> Any:
    build = NetworkBuilder("convolution", dtype=dtype)
    x = build.input("input", ("N", 3, 4, 4))
    y = build.op("Conv", x, build.parameter("conv", (2, 3, 3, 3)), kernel_shape=[3, 3], pads=[1] * 4)
    return build.network({"y": y}).with_values({"conv": network.initial("conv")})
