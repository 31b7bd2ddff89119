"""Frozen parameters: no gradient unless requested, no change by any optimizer, kept in every copy and file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, RuleError, UsageError
from deep5.core.framework import Support
from deep5.distributed.communicators.threads import run_in_threads
from deep5.networks import Network, analyse, mlp
from deep5.networks.microbatching.transform import micro_batched
from deep5.networks.transforms.lowering import lowered
from deep5.networks.transforms.precision import with_precision
from deep5.training.optimizer import RuleOptimizer

FRAMEWORKS = ("reference", "pytorch", "onnxruntime", "tensorflow", "jax", "openvino")
SMALL = {"features": 6, "hidden": 5, "classes": 3}
FROZEN = {"fc1.weight", "fc1.bias"}


def frozen() -> Network:
    return mlp(**SMALL).freeze("fc1.*")


def feed(size: int = 4) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    image = draw.standard_normal((size, 6)).astype(np.float32)
    return {"input": image, "label": draw.integers(0, 3, size)}


def test_names_and_patterns() -> None:
    network = mlp(**SMALL)
    assert not network.frozen
    assert network.freeze("fc1.*").frozen == FROZEN
    assert network.freeze("fc1.bias", "fc2.bias").frozen == {"fc1.bias", "fc2.bias"}
    assert network.freeze().frozen == set(network.parameter_specs)
    assert not network.freeze().unfreeze().frozen
    assert network.freeze().unfreeze("fc2.*").frozen == set(network.parameter_specs) - {"fc2.weight", "fc2.bias"}
    assert list(frozen().parameter_specs) == list(network.parameter_specs)
    assert frozen().trained_specs.keys() == network.parameter_specs.keys() - FROZEN
    assert not network.frozen, "a network does not change"


def test_parameters_maps_names_to_values() -> None:
    network = mlp(**SMALL)
    values = network.parameters()
    assert list(values) == list(network.parameter_specs)
    assert len(values) == len(network.parameter_specs)
    for name, value in values.items():
        np.testing.assert_array_equal(value, network.initial(name))
    assert "fc1.weight" in values
    assert "fc9.weight" not in values
    assert values.get("fc9.weight") is None
    values["fc1.bias"][...] = 7
    assert not (network.parameters()["fc1.bias"] == 7).any()
    assert network.with_values(values).weights_hash() == network.weights_hash()
    normed = d5.networks.resnet(depth=8)
    assert list(normed.buffers()) == list(normed.buffer_specs)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_no_gradient_by_a_frozen_parameter_unless_it_is_named(name: str) -> None:
    run, plain = d5.framework(name).executor(frozen()), d5.framework(name).executor(mlp(**SMALL))
    plain.inference_and_backprop(feed())
    wanted = plain.gradients()
    run.inference_and_backprop(feed())
    assert run.gradients().keys() == frozen().trained_specs.keys()
    for key, gradient in run.gradients().items():
        # The same operations on the same numbers, perhaps in kernels that are fused differently.
        np.testing.assert_allclose(d5.to_numpy(gradient), d5.to_numpy(wanted[key]), rtol=1e-5, atol=1e-6)
    run.inference_and_backprop(feed(), wrt=["fc1.weight"])
    np.testing.assert_allclose(
        d5.to_numpy(run.gradients()["fc1.weight"]), d5.to_numpy(wanted["fc1.weight"]), rtol=1e-5, atol=1e-6
    )
    run.inference_and_backprop(feed())
    run.inference_and_backprop(feed(), accumulate=True)
    assert run.gradients().keys() == frozen().trained_specs.keys()
    assert run.parameters().keys() == frozen().parameter_specs.keys()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *(("rule", name) for name in (*FRAMEWORKS, "pytorch:compiled", "tensorflow:xla")),
        *(("closure", name) for name in ("reference", "pytorch", "jax")),
        *(("native", name) for name in ("pytorch", "tensorflow", "jax")),
    ],
)
def test_no_optimizer_changes_a_frozen_parameter(make: str, name: str) -> None:
    framework = d5.framework(name)
    executor = framework.executor(frozen())
    before = {key: value.copy() for key, value in executor.state_dict().items()}
    if make == "native":
        optimizer: Any = framework.optimizers()["adam"](lr=0.1)
    elif make == "closure":
        optimizer = d5.LBFGS()
    else:
        optimizer = RuleOptimizer(d5.Adam(lr=0.1))
    optimizer.bind(executor)
    for step in range(2):
        optimizer.step(feed(), d5.StepInfo(step=step, batch_size=4))
    after = executor.state_dict()
    for key, value in before.items():
        assert np.array_equal(value, after[key]) == (key in FROZEN), key


def test_groups_and_frozen_parameters_go_together() -> None:
    executor = d5.framework("pytorch").executor(frozen())
    optimizer = RuleOptimizer(d5.SGD(lr=0.1), groups=[d5.ParameterGroup(lambda name: name == "fc2.bias", frozen=True)])
    optimizer.bind(executor)
    assert optimizer.frozen() == FROZEN | {"fc2.bias"}
    optimizer.step(feed(), d5.StepInfo(step=0, batch_size=4))


@pytest.mark.parametrize(
    "change",
    [
        lambda network: network.with_values({}),
        lambda network: network.with_outputs(["logits", "loss"]),
        lambda network: network.add_node("Relu", ["logits"]),
        lambda network: with_precision(network, "bfloat16"),
        lambda network: with_precision(network, "float64"),
        lambda network: micro_batched(network, {"Tanh_1": [2, 2]}),
        lambda network: lowered(network, lambda node: Support(node.op_type != "SoftmaxCrossEntropyLoss")),
        lambda network: d5.framework("pytorch").executor(network).export(),
        lambda network: Network.from_onnx(network.to_onnx()),
    ],
)
def test_a_copy_keeps_what_is_frozen(change: Callable[[Network], Network]) -> None:
    assert change(frozen()).frozen == FROZEN


def test_a_file_keeps_what_is_frozen(tmp_path: Path) -> None:
    frozen().save(tmp_path / "frozen.onnx")
    read = Network.from_onnx(tmp_path / "frozen.onnx")
    assert read.frozen == FROZEN
    assert read.structure_hash() == frozen().structure_hash() != mlp(**SMALL).structure_hash()
    assert frozen().unfreeze().structure_hash() == mlp(**SMALL).structure_hash()


def test_another_name_and_a_part() -> None:
    renamed = frozen().rename("fc1.bias", "fc1.offset")
    assert renamed.frozen == {"fc1.weight", "fc1.offset"}
    assert frozen().subnetwork(["Tanh_1_output", "label"], ["loss"]).frozen == set()
    assert frozen().subnetwork(["input"], ["Tanh_1_output"]).frozen == FROZEN


def test_what_cannot_be_frozen() -> None:
    network = mlp(**SMALL)
    with pytest.raises(NetworkError, match=r"freeze: 'fc1.wieght' matches no parameter; .*did you mean 'fc1.weight'"):
        network.freeze("fc1.wieght")
    with pytest.raises(NetworkError, match=r"unfreeze: got 3; allowed: names of parameters"):
        network.unfreeze(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"all 4 parameters are frozen; .*unfreeze"):
        d5.framework("reference").executor(network.freeze()).inference_and_backprop(feed())


@pytest.mark.parametrize("text", ["[", "{}", "3", '["a", 1]', "[" * 100_000])
def test_a_file_that_says_nonsense(text: str) -> None:
    model = mlp(**SMALL).to_onnx()
    onnx.helper.set_model_props(model, {"deep5.frozen": text})
    with pytest.raises(NetworkError, match=r"the model's deep5.frozen is .*allowed: a list of names"):
        Network.from_onnx(model)


def test_a_file_that_names_what_is_not_there() -> None:
    model = mlp(**SMALL).to_onnx()
    onnx.helper.set_model_props(model, {"deep5.frozen": '["fc1.bias", "other"]'})
    assert Network.from_onnx(model).frozen == {"fc1.bias"}


SCHEMES: dict[str, Callable[[], Any]] = {
    "all_reduce": d5.AllReduce,
    "parameter_server": d5.ParameterServer,
    "local_sgd": lambda: d5.LocalSGD(every=2),
    "gossip": d5.Gossip,
    "neighbourhood": d5.Neighbourhood,
    "hierarchical": lambda: d5.Hierarchical(group_size=1),
    "elastic_averaging": lambda: d5.ElasticAveraging(every=1),
}


@pytest.mark.parametrize("name", [*SCHEMES, "closure"])
@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_ranks_leave_frozen_parameters_as_they_are(name: str, framework: str) -> None:
    scheme = SCHEMES.get(name, d5.AllReduce)()

    def work(communicator: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        run = d5.framework(framework).executor(frozen())
        before = {key: value.copy() for key, value in run.state_dict().items()}
        own = scheme.wrap(d5.LBFGS() if name == "closure" else RuleOptimizer(d5.Adam(lr=0.1)), communicator, seed=0)
        own.bind(run)
        for step in range(2):
            whole = feed(6)
            count = 6 // communicator.size
            mine = {key: value[communicator.rank * count :][:count] for key, value in whole.items()}
            own.step(mine, d5.StepInfo(step=step, batch_size=count, global_batch_size=6))
        with own.averaged():
            pass
        return before, run.state_dict()

    for before, after in run_in_threads(3, work):
        for key, value in before.items():
            assert np.array_equal(value, after[key]) == (key in FROZEN), key


def test_what_is_frozen_has_no_gradient_in_memory() -> None:
    network = d5.networks.lenet()
    whole = analyse(network, batch=8)
    weights = whole.parameter_bytes
    none = analyse(network.freeze(), batch=8)
    head = analyse(network.freeze("conv*"), batch=8)
    last = analyse(network.freeze().unfreeze("fc3.*"), batch=8)
    assert none.peak_training_bytes < last.peak_training_bytes < head.peak_training_bytes < whole.peak_training_bytes
    # Nothing is kept for a backward pass: at most two layers' activations at a time, the two largest here.
    largest = sorted((layer.activation_bytes for layer in whole.layers), reverse=True)
    assert none.peak_training_bytes <= weights + sum(largest[:2]) + 8 * (28 * 28 * 4 + 8)
    assert sum(layer.kept_bytes for layer in none.layers) == 0
    assert whole.peak_training_bytes - none.peak_training_bytes >= weights


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_nothing_to_train_is_refused_everywhere(name: str) -> None:
    executor = d5.framework(name).executor(mlp(**SMALL).freeze())
    with pytest.raises(
        RuleError, match=r"nothing to train by Adam: got 4 parameters, all of them frozen; remedy: network"
    ):
        RuleOptimizer(d5.Adam(lr=0.1)).bind(executor)
    assert "loss" in executor.inference(feed())


def test_a_network_says_what_it_is() -> None:
    assert repr(frozen()) == (
        "<Network 'mlp': input float32[N, 6], label int64[N] -> logits float32[N, 3], loss float32[]; 4 nodes, "
        "4 parameters of 53 numbers, 2 of them frozen>"
    )
    assert {"lenet", "analyse", "layer_times"} <= set(dir(d5.networks))


@pytest.mark.parametrize("seed", ["a", 1.5, None, [1], -1, True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(NetworkError, match=r"got the seed .*; allowed: an integer of at least 0"):
        mlp(**SMALL, seed=seed)
