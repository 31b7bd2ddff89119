"""Low-rank adapters: only they are trained, as a hand-written PyTorch module trains them; merging keeps the outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, UsageError
from deep5.networks import Network, low_rank_adapters, merge_adapters, mlp, vit
from deep5.networks.transforms.precision import with_precision

FRAMEWORKS = ("reference", "pytorch", "onnxruntime", "tensorflow", "jax")
SMALL = {"features": 6, "hidden": 5, "classes": 3, "dtype": "float64"}
# Sums of at most a hundred terms near 1, in another order: a few units in the last place of float64.
NEAR = {"rtol": 1e-12, "atol": 1e-13}


def feed(network: Network, size: int = 4) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    spec = network.inputs["input"]
    image = draw.standard_normal((size, *spec.shape[1:])).astype(spec.dtype)  # type: ignore[arg-type]
    return {"input": image, "label": draw.integers(0, 3, size)}


def tuned(network: Network, **options: Any) -> Network:
    """With adapters whose values are all drawn, as after training."""
    adapted = low_rank_adapters(network, **options)
    draw = np.random.default_rng(1)
    values = {name: draw.standard_normal(spec.shape) for name, spec in adapted.trained_specs.items()}
    return adapted.with_values({name: value.astype(adapted.initial(name).dtype) for name, value in values.items()})


def gemm(alpha: float, trans_b: int) -> Network:
    build = d5.NetworkBuilder("gemm", dtype="float64")
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    weight = build.parameter("weight", (3, 4) if trans_b else (4, 3))
    logits = build.op("Gemm", x, weight, build.parameter("bias", (3,), d5.networks.ones), alpha=alpha, transB=trans_b)
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean")
    return build.network({"logits": logits, "loss": loss})


def outputs(network: Network, framework: str = "reference") -> dict[str, np.ndarray]:
    found = d5.framework(framework).executor(network).inference(feed(network))
    return {name: d5.to_numpy(value) for name, value in found.items()}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_adapted_network_starts_as_the_base(framework: str) -> None:
    base = mlp(**SMALL)
    for name, value in outputs(low_rank_adapters(base, rank=2, alpha=16), framework).items():
        np.testing.assert_allclose(value, outputs(base, framework)[name], **NEAR)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_merged_weights_give_the_outputs_of_the_adapters(framework: str) -> None:
    adapted = tuned(mlp(**SMALL), rank=2, alpha=3)
    merged = merge_adapters(adapted)
    assert list(merged.parameter_specs) == list(mlp(**SMALL).parameter_specs)
    for name, value in outputs(adapted, framework).items():
        np.testing.assert_allclose(outputs(merged, framework)[name], value, **NEAR)
        assert np.abs(outputs(mlp(**SMALL), framework)[name] - value).max() > 1e-3, "the adapters change something"


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_a_gemm_with_its_own_factor(alpha: float, trans_b: int) -> None:
    adapted = tuned(gemm(alpha, trans_b), rank=2, alpha=3)
    base, a, b = (adapted.initial(name) for name in ("weight", "weight.lora_a", "weight.lora_b"))
    whole = (base.T if trans_b else base) + 1.5 * a @ b
    wanted = alpha * feed(adapted)["input"] @ whole + 1
    np.testing.assert_allclose(outputs(adapted)["logits"], wanted, **NEAR)
    np.testing.assert_allclose(outputs(merge_adapters(adapted))["logits"], wanted, **NEAR)


def test_a_transformers_adapters_merge_in_three_dimensions() -> None:
    base = vit(image=8, patch=2, channels=1, width=16, heads=2, layers=1, classes=3, dtype="float64")
    adapted = tuned(base, rank=2, where=("block*.attention.*", "classifier.weight"))
    assert list(adapted.trained_specs) == [
        f"{name}.lora_{end}"
        for name in ("block0.attention.qkv.weight", "block0.attention.out.weight", "classifier.weight")
        for end in "ab"
    ]
    for name, value in outputs(adapted).items():
        np.testing.assert_allclose(outputs(merge_adapters(adapted))[name], value, **NEAR)


def test_a_weight_of_two_products_has_one_adapter() -> None:
    build = d5.NetworkBuilder("twice", dtype="float64")
    weight = build.parameter("weight", (4, 4))
    once = build.op("Tanh", build.op("MatMul", build.input("input", ("N", 4)), weight))
    network = build.network({"logits": build.op("MatMul", once, weight)})
    adapted = tuned(network, rank=1)
    x, whole = feed(network)["input"], network.initial("weight")
    whole = whole + adapted.initial("weight.lora_a") @ adapted.initial("weight.lora_b")
    executor = d5.framework("reference").executor
    for each in (adapted, merge_adapters(adapted)):
        found = executor(each).inference({"input": x})["logits"]
        np.testing.assert_allclose(found, np.tanh(x @ whole) @ whole, **NEAR)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_only_adapters_are_trained(framework: str) -> None:
    adapted = low_rank_adapters(mlp(features=6, hidden=5, classes=3), rank=2, where="fc1.*", train=["fc2.bias"])
    executor = d5.framework(framework).executor(adapted)
    step = executor.train_step(d5.Adam(0.1))
    before = executor.state_dict()
    for number in range(3):
        step(feed(adapted), d5.StepInfo(step=number, batch_size=4))
    after = executor.state_dict()
    changed = {name for name in adapted.parameter_specs if before[name].tobytes() != after[name].tobytes()}
    assert changed == {"fc1.weight.lora_a", "fc1.weight.lora_b", "fc2.bias"} == set(adapted.trained_specs)
    slots = [name for name, value in step.state_dict().items() if np.ndim(value)]
    assert {name.partition("/")[2] for name in slots} <= changed
    assert slots


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_three_steps_equal_those_of_pytorch(framework: str) -> None:
    """A module with frozen linear layers and adapters, written here in torch; float64."""
    torch = pytest.importorskip("torch")
    adapted = tuned(mlp(**SMALL), rank=2, alpha=8)
    values = {name: torch.tensor(adapted.initial(name)) for name in adapted.parameter_specs}
    learned = {name: values[name].requires_grad_() for name in adapted.trained_specs}

    def layer(x: Any, name: str) -> Any:
        low = x @ values[f"{name}.weight.lora_a"] @ values[f"{name}.weight.lora_b"]
        return torch.nn.functional.linear(x, values[f"{name}.weight"], values[f"{name}.bias"]) + 8 / 2 * low

    given = feed(adapted)
    executor = d5.framework(framework).executor(adapted)
    step = executor.train_step(d5.SGD(0.1))
    optimizer = torch.optim.SGD(learned.values(), lr=0.1)
    for number in range(3):
        logits = layer(torch.tanh(layer(torch.tensor(given["input"]), "fc1")), "fc2")
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(given["label"]))
        optimizer.zero_grad()
        loss.backward()
        if number == 0:
            executor.inference_and_backprop(given)
            assert set(executor.gradients()) == set(learned)
            for name, gradient in executor.gradients().items():
                np.testing.assert_allclose(d5.to_numpy(gradient), learned[name].grad.numpy(), **NEAR)
        optimizer.step()
        found = step(given, d5.StepInfo(step=number, batch_size=4))
        np.testing.assert_allclose(float(d5.to_numpy(found["loss"])), loss.item(), rtol=1e-12)
    for name, value in learned.items():
        np.testing.assert_allclose(d5.to_numpy(executor.parameters()[name]), value.detach().numpy(), **NEAR)


def test_a_file_keeps_adapters_and_what_is_frozen(tmp_path: Path) -> None:
    adapted = tuned(mlp(**SMALL), rank=2, alpha=3)
    adapted.save(tmp_path / "adapted.onnx")
    again = Network.from_onnx(tmp_path / "adapted.onnx")
    assert again.frozen == adapted.frozen
    assert again.weights_hash() == adapted.weights_hash()
    assert merge_adapters(again).weights_hash() == merge_adapters(adapted).weights_hash()


def test_another_precision() -> None:
    adapted = with_precision(tuned(mlp(**SMALL), rank=2), "float32")
    assert {spec.dtype for spec in adapted.parameter_specs.values()} == {"float32"}
    # One rounding of each weight, and float32 sums of six terms.
    for name, value in outputs(adapted).items():
        np.testing.assert_allclose(outputs(merge_adapters(adapted))[name], value, rtol=1e-5, atol=1e-5)


def test_the_first_matrix_depends_on_seed_and_name_only() -> None:
    one = low_rank_adapters(mlp(**SMALL), rank=2, seed=3)
    other = low_rank_adapters(mlp(**SMALL), rank=2, seed=3, where="fc2.*")
    name = "fc2.weight.lora_a"
    np.testing.assert_array_equal(one.initial(name), other.initial(name))
    assert (one.initial(name) != low_rank_adapters(mlp(**SMALL), rank=2).initial(name)).any()
    drawn = low_rank_adapters(mlp(features=400, hidden=100, classes=3), rank=50).initial("fc1.weight.lora_a")
    # 20,000 draws: the standard deviation is within 0.5 % of 1 / 20 in 68 % of cases.
    assert abs(drawn.std() * 20 - 1) < 0.02


def test_what_is_refused() -> None:
    base = mlp(**SMALL)
    for options, message in (
        ({"rank": 0}, "got rank=0; allowed: an integer of at least 1"),
        ({"alpha": -1.0}, "got alpha=-1.0; allowed: None or a number above 0"),
        ({"where": ()}, "got no names in where"),
        ({"where": [3]}, "got 3 in where"),
        ({"seed": -1}, "got seed=-1"),
    ):
        with pytest.raises(UsageError, match=message):
            low_rank_adapters(base, **options)
    with pytest.raises(NetworkError, match=r"'fc9\.\*' matches no weight .* allowed: fc1.weight, fc2.weight"):
        low_rank_adapters(base, where="fc9.*")
    with pytest.raises(NetworkError, match="matches no weight"):
        low_rank_adapters(base, where="fc1.bias")
    with pytest.raises(NetworkError, match=r"has adapters; remedy: merge_adapters\(network\) first"):
        low_rank_adapters(low_rank_adapters(base))
    with pytest.raises(NetworkError, match="the network has no adapters"):
        merge_adapters(base)
    with pytest.raises(UsageError, match="low_rank_adapters"):
        low_rank_adapters("mlp")  # type: ignore[arg-type]


def test_a_weight_that_is_an_embedding_too_has_no_adapter() -> None:
    build = d5.NetworkBuilder("tied")
    table = build.parameter("table", (7, 4))
    x = build.op("Gather", table, build.input("tokens", ("N",), "int64"), axis=0)
    hidden = build.op("MatMul", x, build.parameter("hidden", (4, 4)))
    network = build.network({"logits": build.op("Gemm", hidden, table, transB=1)})
    assert list(low_rank_adapters(network, rank=1).trained_specs) == ["hidden.lora_a", "hidden.lora_b"]
    with pytest.raises(NetworkError, match="matches no weight"):
        low_rank_adapters(network, rank=1, where="table")
