"""ONNX Runtime holds weights as constants only as long as no code can write to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5

pytest.importorskip("onnxruntime")


def network() -> d5.Network:
    return d5.networks.resnet18_small(width=4, image=16, classes=4)


def batch(size: int = 3) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(size)
    images = draw.standard_normal((size, 3, 16, 16)).astype("float32")
    return {"input": images, "label": draw.integers(0, 4, size)}


def made() -> Any:
    return d5.framework("onnxruntime").executor(network())


def constants(executor: Any) -> bool:
    """Whether the inference session has no inputs except the batch."""
    return len(executor._session().get_inputs()) == len(executor.network.inputs)


def expected(executor: Any, given: dict[str, np.ndarray]) -> Any:
    reference = d5.framework("reference").executor(network())
    reference.load_state_dict(executor.state_dict())
    return reference.inference(given)["logits"]


def agree(executor: Any) -> None:
    for size in (3, 5, 3):
        given = batch(size)
        wanted = expected(executor, given)
        # Folded into convolutions, normalization rounds elsewhere: eighteen layers of float32.
        limit = 1e-4 * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(executor.inference(given)["logits"], wanted, rtol=0, atol=limit)


def test_inference_alone_has_constants_and_is_right() -> None:
    executor = made()
    agree(executor)
    assert constants(executor)
    assert executor.settings()["threads"] >= 1
    assert constants(executor)
    first, again = (executor.inference(batch()) for _ in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)
        assert not np.shares_memory(again[name], value)


def test_weights_loaded_before_the_first_call_are_constants_too() -> None:
    executor = made()
    state = {name: 1.05 * value for name, value in executor.state_dict().items()}
    executor.load_state_dict(state)
    agree(executor)
    assert constants(executor)


def _in_place(executor: Any) -> None:
    executor.parameters()["fc.bias"][...] += 1


def _statistics_in_place(executor: Any) -> None:
    next(iter(executor.buffers().values()))[...] += 1


def _load(executor: Any) -> None:
    executor.load_state_dict({name: 1.05 * value for name, value in executor.state_dict().items()})


def _write(executor: Any) -> None:
    executor.write(["fc.bias"], np.arange(4, dtype="float32"))


def _train(executor: Any) -> None:
    executor.train_step(d5.SGD(lr=0.1))(batch(), d5.StepInfo(batch_size=3))


def _statistics(executor: Any) -> None:
    executor.inference(batch(), training=True)


def _by_hand(executor: Any) -> None:
    executor.inference_and_backprop(batch())
    gradients = executor.gradients()
    parameters = executor.parameters()
    for name, gradient in gradients.items():
        parameters[name][...] -= 0.1 * gradient


CHANGES = [_in_place, _statistics_in_place, _load, _write, _train, _statistics, _by_hand]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_what_changes_weights_is_seen(change: Callable[[Any], None]) -> None:
    executor = made()
    before = executor.inference(batch())["logits"]
    assert constants(executor)
    for _ in range(2):
        change(executor)
        after = executor.inference(batch())["logits"]
        assert np.abs(after - before).max() > 1e-3
        agree(executor)
        assert not constants(executor)
        before = after if change is not _write else executor.inference(batch(5))["logits"][:3]


def test_arrays_given_out_before_the_first_call_stay_live() -> None:
    executor = made()
    bias = executor.parameters()["fc.bias"]
    before = executor.inference(batch())["logits"]
    bias[...] += 1
    np.testing.assert_allclose(executor.inference(batch())["logits"], before + 1, rtol=0, atol=1e-5)  # one rounding


def test_the_model_of_constants_holds_no_weight() -> None:
    """Weights are passed in memory: a model of more than two gigabytes does not fit into a protobuf message."""
    from deep5.networks.engine import engine_model

    wide = d5.networks.mlp(features=784, hidden=500)
    data = engine_model(wide, fixed=True)
    assert len(data) < 0.05 * sum(spec.size * 4 for spec in wide.parameter_specs.values())
    assert wide.initial("fc1.weight").any()  # the network keeps its own weights
