"""The time of each layer: every layer once, in the right place, together with the total."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import MissingDependency, NetworkError, Unsupported, UsageError
from deep5.core.framework import Framework
from deep5.core.layer_clock import Group
from deep5.networks import LayerTime, LayerTimes, layer_times, lenet, lstm, mlp, transformer, wide_resnet
from deep5.networks.analysis.layer_clock import Owner, Owners, without_gaps
from deep5.networks.gradients import gradient_network
from deep5.networks.random_feed import random_feed

FRAMEWORKS = ("pytorch", "reference", "onnxruntime", "openvino", "tensorflow")
# Wide enough for an order of magnitude: the instrumentation has a cost, and so has the call into a framework.
BAND = (0.2, 2.5)


def heavy() -> Any:
    """A network with one layer that takes nearly all of the time."""
    return mlp(features=2048, hidden=2048, classes=2)


def residual() -> Any:
    """A small network with branches, batch normalization and dropout."""
    return wide_resnet(depth=10, widen=1, width=4, image=8, dropout=0.2, classes=3)


def framework(name: str) -> str:
    pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(name, name))
    return name


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Other processes share the two cores; the previous numbers of threads are restored at the end."""
    before = {}
    for name in ("pytorch", "reference", "onnxruntime", "openvino"):
        with suppress(MissingDependency):
            found = d5.framework(name)
            before[name] = found.executor(mlp(features=2, hidden=2, classes=2)).settings()["threads"]
            found.set_threads(1)
    yield
    for name, threads in before.items():
        d5.framework(name).set_threads(threads)


def layers_of(network: Any) -> list[str]:
    return [str(node.name) for node in network.nodes if node.op_type != "Constant" or node.domain]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layer_is_there_once_and_every_time_is_somewhere(name: str) -> None:
    network = residual()
    (found,) = layer_times(network, framework(name), [3], repetitions=2)
    assert (found.network, found.framework, found.batch) == (network.model.graph.name, name, 3)
    assert [layer.name for layer in found.layers] == layers_of(network)
    assert found.unavailable is None
    assert found.repetitions == 2
    for layer in found.layers:
        alone = layer.forward_s is not None and layer.backward_s is not None and layer.training_forward_s is not None
        assert alone or layer.within in layers_of(network)
        assert layer.within != layer.name
        assert min(layer.forward_s or 0.0, layer.training_forward_s or 0.0, layer.backward_s or 0.0) >= 0.0
    convolutions = [layer for layer in found.layers if layer.op_type == "Conv"]
    assert all(layer.within is None or layer.forward_s is not None for layer in convolutions)
    assert sum(layer.backward_s or 0.0 for layer in convolutions) > 0.0
    for kind in ("forward_s", "training_forward_s", "backward_s"):
        parts = [getattr(layer, kind) for layer in found.layers if getattr(layer, kind) is not None]
        assert getattr(found, kind) == pytest.approx(sum(parts))
    assert found.whole_forward_s > 0.0
    assert found.whole_step_s is not None


def test_one_a_batch_size_in_the_order_given() -> None:
    found = layer_times(mlp(features=4, hidden=3, classes=2), "reference", (2, 7, 1), repetitions=1)
    assert [each.batch for each in found] == [2, 7, 1]


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("make", [lstm, transformer], ids=["expanded", "fused"])
def test_layers_that_become_several_or_run_with_others_are_known(name: str, make: Any) -> None:
    network = lstm(hidden=64, length=3) if make is lstm else transformer(layers=1)
    (found,) = layer_times(network, framework(name), [16], repetitions=1)
    assert [layer.name for layer in found.layers] == layers_of(network)
    kinds = found.by_type()
    main = "LSTM" if make is lstm else "MatMul"
    forward, backward = kinds[main]
    assert forward
    assert backward


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_without_backward_or_without_a_loss_there_is_no_step(name: str) -> None:
    network = mlp(features=4, hidden=3, classes=2)
    (found,) = layer_times(network, framework(name), [2], backward=False, repetitions=1)
    assert (found.whole_step_s, found.backward_s, found.training_forward_s, found.unavailable) == (None,) * 4
    bare = network.with_outputs(["logits"])
    (found,) = layer_times(bare, name, [2], repetitions=1)
    assert found.forward_s is not None
    assert (found.whole_step_s, found.backward_s) == (None, None)
    assert found.unavailable == "there is no backward pass: the network has no output 'loss'; its outputs are logits"
    assert all(layer.backward_s is None for layer in found.layers)


@pytest.mark.parametrize(
    "name",
    ["jax", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pytorch:compiled", "tensorflow:xla"))],
)
def test_what_is_compiled_as_a_whole_has_no_parts_and_says_so(name: str) -> None:
    framework(name.partition(":")[0])
    (found,) = layer_times(mlp(features=4, hidden=3, classes=2), name, [2], repetitions=1)
    assert found.framework == name
    assert found.unavailable is not None
    assert found.unavailable.startswith(f"{name} compiles a pass as one function")
    assert (found.forward_s, found.training_forward_s, found.backward_s) == (None, None, None)
    assert (found.instrumented_forward_s, found.instrumented_step_s) == (None, None)
    assert found.whole_forward_s > 0.0
    assert found.whole_step_s
    assert all(layer.forward_s is None and layer.within is None for layer in found.layers)
    assert set(found.by_type().values()) == {(None, None)}


def test_sums_by_type_are_of_what_is_known_the_largest_first() -> None:
    def layer(name: str, op_type: str, forward: float | None, backward: float | None) -> LayerTime:
        return LayerTime(name=name, op_type=op_type, forward_s=forward, training_forward_s=forward, backward_s=backward)

    layers = (layer("a", "Relu", None, None), layer("b", "Gemm", 1.0, 2.0), layer("c", "Conv", 3.0, None))
    found = LayerTimes(
        network="n",
        framework="reference",
        batch=1,
        layers=(*layers, layer("d", "Gemm", None, 4.0)),
        forward_s=4.0,
        training_forward_s=4.0,
        backward_s=6.0,
        instrumented_forward_s=4.5,
        instrumented_step_s=10.5,
        whole_forward_s=5.0,
        whole_step_s=10.0,
        repetitions=1,
        unavailable=None,
    )
    assert list(found.by_type().items()) == [("Gemm", (1.0, 6.0)), ("Conv", (3.0, None)), ("Relu", (None, None))]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"batches": []}, r"batches=\[\]; allowed: integers of at least 1"),
        ({"batches": [4, 0]}, "batches=.*allowed: integers of at least 1"),
        ({"batches": [True]}, "batches="),
        ({"batches": 4}, "batches=4"),
        ({"batches": [1, 2, 1]}, r"batches=\[1, 2, 1\]; allowed: .* each once"),
        ({"seed": "a"}, "seed='a'; allowed: an integer"),
        ({"seed": 1.5}, "seed=1.5; allowed"),
        ({"batches": "16"}, "batches='16'"),
        ({"repetitions": 0}, "repetitions=0; allowed: an integer from 1 to 10000"),
        ({"repetitions": 1.5}, "repetitions=1.5"),
        ({"framework": "pytroch"}, "unknown framework 'pytroch'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        layer_times(mlp(), **{"framework": "reference", "batches": [1], **arguments})


@pytest.mark.parametrize("name", ["pytorch", "reference", "onnxruntime"])
def test_what_is_frozen_has_no_step(name: str) -> None:
    network = mlp(features=4, hidden=3, classes=2)
    (found,) = layer_times(network.freeze(), framework(name), [2], repetitions=1)
    assert found.unavailable == "there is no backward pass: all parameters are frozen"
    assert (found.whole_step_s, found.backward_s, found.training_forward_s) == (None,) * 3
    assert found.forward_s is not None
    assert found.whole_forward_s > 0.0
    (found,) = layer_times(network.freeze("*weight*"), name, [2], repetitions=1)  # not all
    assert found.unavailable is None
    assert found.backward_s is not None


def test_all_that_is_missing_is_told() -> None:
    network = mlp(features=4, hidden=3, classes=2).with_outputs(["logits"])
    (found,) = layer_times(network, framework("jax"), [2], repetitions=1)
    assert found.unavailable is not None
    assert found.unavailable.startswith("jax compiles a pass as one function")
    assert "; there is no backward pass: the network has no output 'loss'" in found.unavailable


def test_what_a_framework_raises_itself_is_told() -> None:
    class Failing(type(d5.framework("reference"))):  # type: ignore[misc]
        def executor(self, network: Any, **options: Any) -> Any:
            raise ValueError("operands could not be\nbroadcast")

    with pytest.raises(NetworkError, match=r"reference cannot run the network 'mlp' \(operands could not be"):
        layer_times(mlp(), Failing(), [2], repetitions=1)


def test_no_network_and_a_batch_that_is_too_large_are_refused() -> None:
    with pytest.raises(UsageError, match="layer_times: got 'mlp' as the network; allowed: a Network"):
        layer_times("mlp", "reference", [1])  # type: ignore[arg-type]
    with pytest.raises(NetworkError, match="got batch = 2147483648; allowed"):
        layer_times(mlp(), "reference", [2**31])


def test_a_batch_size_needs_an_extent() -> None:
    with pytest.raises(NetworkError, match="no dimension of an input is left for the batch size"):
        layer_times(mlp(), "reference", [1], extents={"N": 3})
    with pytest.raises(NetworkError, match="no input has a symbolic dimension 'length'"):
        layer_times(mlp(), "reference", [1], extents={"length": 3})


def test_a_back_end_without_a_clock_says_so() -> None:
    class Plain(type(d5.framework("reference"))):  # type: ignore[misc]
        layer_clock = Framework.layer_clock

    (found,) = layer_times(mlp(features=4, hidden=3, classes=2), Plain(), [2], repetitions=1)
    assert found.unavailable == "reference does not measure the time of a layer"
    assert found.whole_step_s


@pytest.mark.parametrize("name", ["onnxruntime", "tensorflow"])
def test_profiles_are_removed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    framework(name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    network = mlp(features=4, hidden=3, classes=2)
    layer_times(network, name, [2], repetitions=1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(NetworkError, match="label"):
        failing(name, network)
    assert not list(tmp_path.iterdir())


def failing(name: str, network: Any) -> None:
    clock = d5.framework(name).layer_clock(network)
    try:
        clock.inference({"input": np.zeros((1, 4), np.float32), "label": np.array([7])})
    finally:
        clock.close()


@pytest.mark.parametrize("name", ["pytorch", "reference"])
def test_stamps_change_no_bit(name: str) -> None:
    network = residual()
    feed = random_feed(network, {"N": 2})
    plain, clock = d5.framework(framework(name)).executor(network), d5.framework(name).layer_clock(network)
    stamped: Any = clock._executor  # type: ignore[attr-defined]
    for executor in (plain, stamped):
        executor.inference_and_backprop(feed)
    for key, value in plain.gradients().items():
        assert np.array_equal(d5.to_numpy(value), d5.to_numpy(stamped.gradients()[key])), key
    for key, value in plain.inference(feed).items():
        assert np.array_equal(d5.to_numpy(value), d5.to_numpy(stamped.inference(feed)[key])), key


@pytest.mark.parametrize("make", [lenet, lstm, transformer], ids=["lenet", "lstm", "transformer"])
def test_every_node_of_a_gradient_belongs_to_a_layer(make: Any) -> None:
    network = {lenet: lenet, lstm: lambda: lstm(hidden=4, length=3), transformer: lambda: transformer(layers=1)}[make]()
    gradients = gradient_network(network)
    owners = Owners(network, gradients)
    layers = set(layers_of(network))
    for node in gradients.nodes:
        owner = owners.of(str(node.name))
        assert owner is not None, node.name
        assert owner.layer in layers
        if node.name in layers:
            assert owner == Owner(str(node.name), False)
    backward = {owner.layer for node in gradients.nodes if (owner := owners.of(str(node.name))) and owner.backward}
    assert any("Conv" in name or "LSTM" in name or "MatMul" in name for name in backward)


def test_what_an_engine_adds_goes_with_what_reads_it() -> None:
    one, two = Group(("a",), False), Group(("b",), False)
    assert without_gaps([None, one, None, two, None], [[1], [2, 3], [], [4], []]) == [one, one, one, two, two]
    assert without_gaps([None], [[]]) == [None]


def test_inputs_are_drawn_that_the_network_can_take() -> None:
    network = d5.networks.gpt(vocabulary=11, length=5, width=8, heads=2, layers=1)
    feed = random_feed(network, {"N": 64})
    for name, spec in network.inputs.items():
        assert feed[name].dtype == spec.dtype
        assert 0 <= feed[name].min() <= feed[name].max() == 10
    assert np.array_equal(*(random_feed(network, {"N": 64}, 3)[next(iter(feed))] for _ in range(2)))
    assert math.isfinite(float(d5.to_numpy(d5.framework("reference").executor(network).inference(feed)["loss"])))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layer_has_its_time_and_the_parts_amount_to_something(name: str) -> None:
    (found,) = layer_times(heavy(), framework(name), [64], repetitions=5)
    first = next(layer for layer in found.layers if layer.op_type == "Gemm")
    assert found.forward_s is not None
    assert found.backward_s is not None
    assert first.forward_s is not None
    assert first.backward_s is not None
    assert 0 < first.forward_s <= found.forward_s
    assert 0 < first.backward_s <= found.backward_s
    assert found.instrumented_forward_s is not None
    assert found.instrumented_step_s is not None
    assert found.whole_step_s is not None
    assert min(found.instrumented_forward_s, found.whole_forward_s) > 0
    assert min(found.instrumented_step_s, found.whole_step_s) > 0


def test_tensorflow_takes_one_profile_at_a_time(tmp_path: Path) -> None:
    tensorflow = pytest.importorskip("tensorflow")
    clock = d5.framework("tensorflow").layer_clock(mlp(features=4, hidden=3, classes=2))
    tensorflow.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(Unsupported, match="takes one at a time"):
            clock.inference({"input": np.zeros((1, 4), np.float32), "label": np.array([0])})
    finally:
        tensorflow.profiler.experimental.stop(save=False)
