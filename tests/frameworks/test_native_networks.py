"""Networks written in a framework's own code: a torch module, a Keras model, each as an executor."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import deep5 as d5
from deep5.core.errors import NetworkError, RecipeError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import TensorSpec
from deep5.frameworks.pytorch import from_module
from deep5.networks import lenet
from deep5.networks.native import NativeNetwork
from deep5.networks.probing import output_specs
from deep5.recipe.recipe import load_recipe
from deep5.results.table import verdict_table
from deep5.run.execute import execute
from deep5.training.dataset import ArrayDataset

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

INPUTS = {"input": TensorSpec(shape=("N", 4)), "label": TensorSpec(shape=("N",), dtype="int64")}
RNG = np.random.default_rng(5)


def feed(count: int = 6, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {"input": RNG.standard_normal((count, 4)).astype(dtype), "label": np.arange(count) % 3}


def module(seed: int = 1, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


def executor(made: nn.Module | None = None, **options: Any) -> Any:
    return from_module(made or module(), F.cross_entropy, inputs=INPUTS, **options)


def info(step: int, **options: Any) -> d5.StepInfo:
    return d5.StepInfo(step=step, batch_size=6, **options)


# torch.nn.Module


def test_a_module_meets_the_interface_and_describes_itself() -> None:
    run = executor()
    assert isinstance(run, GraphExecutor)
    network = run.network
    assert isinstance(network, NativeNetwork)
    assert {name: str(spec) for name, spec in network.outputs.items()} == {
        "logits": "float32[N, 3]",
        "loss": "float32[]",
    }
    assert list(network.parameter_specs) == ["0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"]
    assert list(network.buffer_specs) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert network.weights_hash() == executor().network.weights_hash() != executor(module(2)).network.weights_hash()
    assert network.structure_hash() == executor(module(2)).network.structure_hash()
    assert network.structure_hash() != executor(module(1, 0.5)).network.structure_hash()
    assert run.settings()["framework"] == "pytorch"


def test_parameters_and_buffers_are_the_modules_own() -> None:
    made = module()
    run, step = executor(made), None
    initial = run.state_dict()["0.weight"]
    step = run.train_step(d5.SGD(lr=0.1))
    step(feed(), info(0))
    assert torch.equal(run.parameters()["0.weight"], made[0].weight.detach())  # type: ignore[index]
    assert not np.array_equal(run.state_dict()["0.weight"], initial)
    assert run.network.weights_hash() == executor().network.weights_hash()  # the initial weights
    assert run.state_dict()["1.num_batches_tracked"] == 1
    run.load_state_dict({name: value * 0 for name, value in run.state_dict().items()})
    assert not made[0].weight.any()  # type: ignore[index]


def test_a_module_against_torch_by_hand() -> None:
    ours, by_hand = module(), module()
    run, step = executor(ours), None
    step = run.train_step(d5.SGD(lr=0.1))
    for number in range(3):
        batch = feed()
        outputs = step(batch, info(number))
        loss = F.cross_entropy(by_hand(torch.from_numpy(batch["input"])), torch.from_numpy(batch["label"]))
        by_hand.zero_grad()
        loss.backward()
        assert outputs["loss"].item() == loss.item()  # the same calls, so bit-identical
        with torch.no_grad():
            for name, value in by_hand.named_parameters():
                assert torch.equal(run.gradients()[name], value.grad)  # type: ignore[arg-type]
                # One rounding of the product more or less.
                torch.testing.assert_close(
                    run.parameters()[name],
                    value - 0.1 * value.grad,
                    rtol=1e-6,
                    atol=1e-7,  # type: ignore[operator]
                )
                value.copy_(run.parameters()[name])
    by_hand.eval()
    batch = feed()
    outputs = run.inference(batch)
    assert torch.equal(outputs["logits"], by_hand(torch.from_numpy(batch["input"])).detach())
    assert not any(value.requires_grad for value in outputs.values())


def jax_apply(parameters: Any, inputs: Any) -> dict[str, Any]:
    import jax

    hidden = jax.numpy.tanh(inputs["input"] @ parameters["hidden"])
    logits = hidden @ parameters["head"] + parameters["last"]
    shares = jax.nn.log_softmax(logits)
    return {"logits": logits, "loss": -(jax.nn.one_hot(inputs["label"], 3) * shares).sum(1).mean()}


def native_executor(kind: str, inputs: dict[str, TensorSpec]) -> Any:
    """An executor of native code in the element type of the inputs; its last parameter is a bias."""
    dtype = inputs["input"].dtype
    if kind == "module":
        return from_module(module().to(getattr(torch, dtype)), F.cross_entropy, inputs=inputs)
    if kind == "keras":
        from deep5.frameworks.tensorflow.native import from_keras

        d5.framework("tensorflow")
        own = pytest.importorskip("keras")
        own.utils.set_random_seed(1)
        layers = [own.layers.Dense(8, activation="tanh", dtype=dtype), own.layers.Dense(3, dtype=dtype)]
        model = own.Sequential([own.Input((4,), dtype=dtype), *layers])
        return from_keras(model, own.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=dtype), inputs=inputs)
    pytest.importorskip("jax")
    from deep5.frameworks.jax.native import from_jax

    draw = np.random.default_rng(1)
    shapes = {"head": (8, 3), "hidden": (4, 8), "last": (3,)}
    return from_jax(
        jax_apply, {name: draw.normal(size=shape).astype(dtype) for name, shape in shapes.items()}, inputs=inputs
    )


# JAX computes in float32 unless the process enables 64 bits.
@pytest.mark.parametrize(("kind", "dtype"), [("module", "float64"), ("keras", "float64"), ("jax", "float32")])
def test_options_of_a_backward_pass(kind: str, dtype: str) -> None:
    inputs = {**INPUTS, "input": TensorSpec(shape=("N", 4), dtype=dtype)}
    run, batch = native_executor(kind, inputs), feed(dtype=dtype)
    told: dict[str, np.ndarray] = {}

    def kept() -> dict[str, np.ndarray]:
        return {name: np.array(d5.to_numpy(value)) for name, value in run.gradients().items()}

    def tell(name: str, value: Any) -> None:
        assert name not in told
        told[name] = np.array(d5.to_numpy(value))

    run.inference_and_backprop(batch, on_gradient=tell)
    first = kept()
    assert set(told) == set(first) == set(run.network.parameter_specs)
    for name, value in first.items():
        np.testing.assert_array_equal(told[name], value)
        assert np.abs(value).max() > 0 or kind == "module"  # the bias before a normalization has none
    run.inference_and_backprop(batch, accumulate=True, loss_scale=2.0)
    # One rounding of the sum, and roundings of the gradients themselves: sums of six samples.
    close = {"float64": {"rtol": 1e-12, "atol": 1e-15}, "float32": {"rtol": 1e-5, "atol": 1e-7}}[dtype]
    for name, value in kept().items():
        np.testing.assert_allclose(value, 3 * first[name], **close)
    last = list(run.network.parameter_specs)[-1]
    run.inference_and_backprop(batch, wrt=["input", last])
    found = kept()
    assert list(found) == ["input", last]
    np.testing.assert_allclose(found[last], first[last], **close)
    # A central difference is off by the square of its step, and by the loss's rounding over the step.
    step, allowed = {"float64": (1e-6, 1e-8), "float32": (2e-3, 1e-3)}[dtype]
    direction = RNG.standard_normal((6, 4))
    up, down = (
        float(
            d5.to_numpy(
                run.inference(
                    {**batch, "input": (batch["input"] + sign * step * direction).astype(dtype)}, training=True
                )["loss"]
            )
        )
        for sign in (1, -1)
    )
    slope = float((found["input"] * direction).sum())
    assert abs(slope) > 10 * allowed  # so a zero gradient would be detected
    assert slope == pytest.approx((up - down) / (2 * step), abs=allowed)
    with pytest.raises(UnknownName, match="unknown loss 'los'"):
        run.inference_and_backprop(batch, "los")
    with pytest.raises(ShapeError, match="missing input 'label'"):
        run.inference({"input": batch["input"]})


def test_dropout_is_a_function_of_seed_and_step() -> None:
    run, batch = executor(module(dropout=0.5)), feed()

    def loss(step: int, seed: int) -> float:
        found: float = run.inference(batch, training=True, info=d5.StepInfo(step=step, seed=seed))["loss"].item()
        return found

    torch.manual_seed(3)
    want = torch.rand(1)
    torch.manual_seed(3)
    first = loss(0, 1)
    assert torch.equal(torch.rand(1), want)  # the caller's stream continues as if nothing had been drawn
    assert first == loss(0, 1)
    assert len({first, loss(1, 1), loss(0, 2)}) == 3
    assert run.inference(batch)["loss"].item() == run.inference(batch)["loss"].item()


@pytest.mark.parametrize("kind", ["adam", d5.Adam(lr=0.05), d5.AcceleGrad(lr=0.05)])
def test_a_resumed_run_repeats_itself(kind: Any) -> None:
    batches = [feed() for _ in range(6)]

    def start() -> tuple[Any, Any, Any]:
        run = executor(module(dropout=0.3))
        if isinstance(kind, str):
            optimizer: Any = d5.framework("pytorch").optimizer(kind)(lr=0.05)
            optimizer.bind(run)
            return run, optimizer, optimizer.step
        step = run.train_step(kind)
        return run, step, step

    whole, _, call = start()
    for number, batch in enumerate(batches):
        call(batch, info(number, seed=7))
    half, optimizer, call = start()
    for number, batch in enumerate(batches[:3]):
        call(batch, info(number, seed=7))
    state, own = half.state_dict(), optimizer.state_dict()
    rest, optimizer, call = start()
    rest.load_state_dict(state)
    optimizer.load_state_dict(own)
    for number, batch in enumerate(batches[3:], start=3):
        call(batch, info(number, seed=7))
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(rest.state_dict()[name], value)


def test_a_trainer_trains_a_module_as_it_trains_the_network() -> None:
    network = lenet()
    made = nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)),
    )
    with torch.no_grad():
        for value, name in zip(made.parameters(), network.parameter_specs, strict=True):
            value.copy_(torch.from_numpy(network.initial(name)))
    data = ArrayDataset({"input": RNG.standard_normal((20, 1, 28, 28)).astype(np.float32), "label": np.arange(20) % 10})
    scores = []
    for run in (
        from_module(made, F.cross_entropy, inputs=network.inputs),
        d5.framework("pytorch").executor(network),
    ):
        trainer = d5.Trainer(run, d5.Adam(), d5.ShuffleSampler(data, 8), d5.OrderedSampler(data, 20))
        trainer.train(2)
        scores.append(trainer.scores)
    assert scores[0] == scores[1]  # the same calls, so bit-identical


def test_parameters_that_require_no_gradient_are_left_alone() -> None:
    made = module()
    made[0].weight.requires_grad_(False)  # type: ignore[index]
    run = executor(made)
    assert "0.weight" not in run.network.parameter_specs
    assert "0.weight" in run.network.buffer_specs
    before = run.state_dict()["0.weight"]
    run.train_step(d5.SGD(lr=0.1))(feed(), info(0))
    np.testing.assert_array_equal(run.state_dict()["0.weight"], before)
    assert "0.weight" not in run.gradients()


class Centred(nn.Module):
    """Replaces the old running mean by a new tensor, as many modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.mean: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        found: torch.Tensor = self.linear(x - self.mean)
        return found


def test_a_buffer_that_the_module_replaces_is_saved_and_restored() -> None:
    made = Centred()
    run, batch = executor(made), feed()
    run.train_step(d5.SGD(lr=0.1))(batch, info(0))
    want, out = 0.1 * batch["input"].mean(0), np.empty(4, np.float32)
    run.read(["mean"], out)
    for value in (run.state_dict()["mean"], run.buffers()["mean"], out):
        # One rounding more or less of a mean of six.
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-7)
    state = run.state_dict()
    run.train_step(d5.SGD(lr=0.1))(batch, info(1))
    run.load_state_dict(state)
    np.testing.assert_array_equal(made.mean, state["mean"])
    run.write(["mean"], np.ones(4, np.float32))
    assert (made.mean == 1).all()
    made.mean = torch.zeros(5)
    with pytest.raises(NetworkError, match=r"the module's buffer 'mean': got shape \(5,\).*remedy: a new from_module"):
        run.state_dict()
    del made.mean
    with pytest.raises(NetworkError, match=r"the module's buffer 'mean': got none; allowed: float32\[4\]"):
        run.buffers()


def test_a_parameter_that_is_frozen_later_is_not_trained_by_zeros() -> None:
    made = module()
    run, batch = executor(made), feed()
    step = run.train_step(d5.Momentum(0.1))
    step(batch, info(0))
    made[0].weight.requires_grad_(False)  # type: ignore[index]
    before = made[0].weight.clone()  # type: ignore[index]
    message = r"parameter '0\.weight', which was frozen after from_module .*remedy: ParameterGroup\(…, frozen=True\)"
    for call in (
        lambda: step(batch, info(1)),
        lambda: step.backprop(batch, info(1), lambda name, gradient: None),
        lambda: run.inference_and_backprop(batch, wrt=["0.weight"]),
        lambda: (run.inference_and_backprop(batch), run.gradients()),
    ):
        with pytest.raises(Unsupported, match=message):
            call()
    assert torch.equal(made[0].weight, before)  # type: ignore[index]
    group = d5.ParameterGroup(lambda name: name == "0.weight", frozen=True)
    run.train_step(d5.Momentum(0.1), groups=[group])(batch, info(1))
    executor(made).train_step(d5.Momentum(0.1))(batch, info(1))
    assert torch.equal(made[0].weight, before)  # type: ignore[index]


@pytest.mark.parametrize("own", [nn.Identity(), nn.Sequential(nn.Flatten(), nn.Dropout())], ids=["identity", "views"])
def test_outputs_of_a_module_are_nobody_elses_memory(own: nn.Module) -> None:
    run = from_module(own, F.mse_loss, inputs={"x": TensorSpec(shape=("N", 4)), "y": TensorSpec(shape=("N", 4))})
    batch = {name: RNG.standard_normal((6, 4)).astype(np.float32) for name in "xy"}
    kept = batch["x"].copy()
    run.inference(batch)["logits"].zero_()
    np.testing.assert_array_equal(batch["x"], kept)


class Constant(nn.Module):
    """Returns its parameter for any input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight


def test_an_output_of_a_module_that_is_its_parameter_is_a_copy() -> None:
    run = from_module(Constant(), lambda output, label: output.square().sum(), inputs=INPUTS)
    found = run.inference(feed())["logits"]
    assert not found.requires_grad
    run.train_step(d5.SGD(lr=0.1))(feed(), info(0))
    assert (np.asarray(found) == 1).all()


def test_what_is_no_module_that_runs() -> None:
    with pytest.raises(Unsupported, match=r"'Sequential' is native code, which cannot be exported .*remedy: keep"):
        executor().export()
    with pytest.raises(UsageError, match=r"got function, .*; allowed: a torch.nn.Module and a function"):
        from_module(module, F.cross_entropy, inputs=INPUTS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"got the inputs \['label'\]; allowed: inputs of the module, then the label"):
        from_module(module(), F.cross_entropy, inputs={"label": INPUTS["label"]})
    wrong = {**INPUTS, "input": TensorSpec(shape=("N", 5))}
    with pytest.raises(UsageError, match=r"the module Sequential does not run on input float32\[2, 5\] .*remedy: look"):
        from_module(module(), F.cross_entropy, inputs=wrong)
    with pytest.raises(UsageError, match="the module LSTM gives a tuple; allowed: one tensor"):
        from_module(nn.LSTM(4, 3), lambda output, label: output[0].sum(), inputs=INPUTS)
    with pytest.raises(Unsupported, match="parameters without a shape; remedy: run it once"):
        from_module(nn.LazyLinear(3), F.cross_entropy, inputs=INPUTS)
    with pytest.raises(Unsupported, match="'weight' is of bfloat16, which NumPy lacks"):
        from_module(nn.Linear(4, 3).bfloat16(), F.cross_entropy, inputs=INPUTS)
    with pytest.raises(Unsupported, match=r"the output 'logits', .*cannot be differentiated"):
        executor().inference_and_backprop(feed(), "logits")


def test_a_module_that_was_in_evaluation_stays_in_it_while_it_is_looked_at() -> None:
    made = module().eval()
    executor(made)
    assert not made.training
    assert made[1].num_batches_tracked == 0  # type: ignore[index]


def test_extents_are_told_apart() -> None:
    inputs = {"x": TensorSpec(shape=("N", "T", 2)), "y": TensorSpec(shape=("N",))}
    specs = output_specs(
        "f", inputs, lambda given: [(given[0].swapaxes(0, 1).shape, "int8"), ((given[1].size + 1,), "b")]
    )
    assert [str(spec) for spec in specs] == ["int8[T, N, 2]", "b[?0]"]
    many = {"x": TensorSpec(shape=("A", "B", "C", "D", "E"))}
    with pytest.raises(UsageError, match=r"the inputs of f have the symbolic dimensions .*; allowed: up to 4"):
        output_specs("f", many, lambda given: [])


RECIPE = """
import torch
from torch import nn
from deep5.frameworks.pytorch import from_module
from deep5.core.tensors import TensorSpec

def network(seed):
    torch.manual_seed(seed % 2**63)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))

def run_on(module, seed):
    inputs = {"input": TensorSpec(shape=("N", 4)), "label": TensorSpec(shape=("N",), dtype="int64")}
    return from_module(module, nn.functional.cross_entropy, inputs=inputs, seed=seed)

FIXED = {
    "model": network, "executor": run_on, "dataset": "synthetic", "epochs": 2,
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 60, "test": 30},
}
MUTABLE = {"batch_size": 16, "optimizer": "adam"}
METRICS = [("test_accuracy", None), ("training_loss", None)]
"""


@pytest.mark.parametrize("optimizer", ["adam", "native:adam"])
def test_a_recipe_trains_a_module(optimizer: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(RECIPE)
    recipe = load_recipe(file).with_settings({"optimizer": optimizer})
    first, second = (execute(recipe, out=tmp_path / "out") for _ in range(2))
    assert first.metric("training_loss") == second.metric("training_loss")
    assert first.document["framework"]["name"] == "pytorch"
    assert first.document["warnings"] == [
        "the network is native code: the result holds its weights and no network.onnx"
    ]
    console = Console(width=100, file=io.StringIO())
    with console.capture() as shown:
        verdict_table(first, console)
    assert "  note: the network is native code" in shown.get()
    assert "warning" not in shown.get()
    assert not (first.folder / "network.onnx").exists()
    weights = load_file(first.folder / "weights.safetensors")
    assert sorted(weights) == ["0.bias", "0.weight", "3.bias", "3.weight"]
    made = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for value, name in zip(made.parameters(), ("0.weight", "0.bias", "3.weight", "3.bias"), strict=True):
            value.copy_(torch.from_numpy(weights[name]))
    hashes = first.document["provenance"]
    assert hashes["trained_weights"] == second.document["provenance"]["trained_weights"] != hashes["initial_weights"]


def test_what_a_recipe_of_a_module_may_not_say(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(RECIPE.replace('"executor": run_on', '"framework": "pytorch"'))
    with pytest.raises(RecipeError, match=r"own.py:\d+: the model Sequential has no loss; remedy: loss='"):
        execute(load_recipe(file), out=tmp_path)
    file.write_text(RECIPE)
    (tmp_path / "w.safetensors").write_bytes(b"")
    with pytest.raises(RecipeError, match=r"'init' is for a d5\.Network; remedy: load the weights"):
        execute(load_recipe(file).with_settings({"init": str(tmp_path / "w.safetensors")}), out=tmp_path)


# keras.Model


@pytest.fixture(scope="module")
def keras() -> Any:
    pytest.importorskip("tensorflow")
    d5.framework("tensorflow")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    return pytest.importorskip("keras")


def model(keras: Any, dropout: float = 0.0) -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    middle = [layers.BatchNormalization(), layers.Activation("tanh"), layers.Dropout(dropout)]
    return keras.Sequential([keras.Input((4,)), layers.Dense(8), *middle, layers.Dense(3)])


def keras_executor(keras: Any, made: Any = None, dropout: float = 0.0) -> Any:
    from deep5.frameworks.tensorflow.native import from_keras

    made = made or model(keras, dropout)
    return from_keras(made, keras.losses.SparseCategoricalCrossentropy(from_logits=True), inputs=INPUTS)


def test_a_keras_model_describes_itself(keras: Any) -> None:
    run = keras_executor(keras)
    assert isinstance(run, GraphExecutor)
    assert isinstance(run.network, NativeNetwork)
    assert {name: str(spec) for name, spec in run.network.outputs.items()} == {
        "logits": "float32[N, 3]",
        "loss": "float32[]",
    }
    assert len(run.network.parameter_specs) == 6
    assert list(run.network.buffer_specs) == ["4.moving_mean", "5.moving_variance"]
    again = keras_executor(keras)
    assert run.network.weights_hash() == again.network.weights_hash()
    assert run.network.structure_hash() == again.network.structure_hash()
    assert run.network.structure_hash() != keras_executor(keras, dropout=0.5).network.structure_hash()
    with pytest.raises(Unsupported, match="is native code, which cannot be exported"):
        run.export()


def test_a_keras_model_against_keras_by_hand(keras: Any) -> None:
    import tensorflow as tf

    made, by_hand = model(keras), model(keras)
    run, loss = keras_executor(keras, made), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    batch = feed()
    with tf.GradientTape() as tape:
        want = loss(batch["label"], by_hand(batch["input"], training=True))
    gradients = tape.gradient(want, by_hand.trainable_weights)
    outputs = run.inference_and_backprop(batch)
    # The same operations; within a traced function TensorFlow may fuse some of them.
    np.testing.assert_allclose(outputs["loss"], want, rtol=1e-6)
    for got, gradient in zip(run.gradients().values(), gradients, strict=True):
        np.testing.assert_allclose(got, gradient, rtol=1e-5, atol=1e-7)
    for ours, theirs in zip(made.non_trainable_variables, by_hand.non_trainable_variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(run.inference(batch)["logits"], by_hand(batch["input"]), rtol=1e-5, atol=1e-6)
    run.inference_and_backprop(batch, wrt=["input"])
    assert list(run.gradients()) == ["input"]


@pytest.mark.parametrize("rule", [d5.SGD(lr=0.1), d5.AcceleGrad(lr=0.05)], ids=["sgd", "accelegrad"])
def test_a_whole_step_is_its_two_halves(keras: Any, rule: Any) -> None:
    batches, states = [feed() for _ in range(4)], []
    for halves in (False, True):
        made = model(keras)
        run = keras_executor(keras, made)
        step = run.train_step(rule)
        for number, batch in enumerate(batches):
            if halves:
                step.backprop(batch, info(number))
                step.apply(run.gradients(), info(number))
            else:
                step(batch, info(number))
        assert step.traces == 1
        states.append(run.state_dict())
        np.testing.assert_array_equal(made.trainable_variables[0].numpy(), next(iter(states[-1].values())))  # shared
    for name, value in states[0].items():
        # One graph or two: the order of sums may differ.
        np.testing.assert_allclose(states[1][name], value, rtol=1e-5, atol=1e-6)


def test_a_restored_keras_model_draws_on_from_where_it_was(keras: Any) -> None:
    batches = [feed() for _ in range(6)]
    whole = keras_executor(keras, dropout=0.5)
    assert any("seed" in name for name in whole.network.buffer_specs)
    step = whole.train_step(d5.Adam())
    for number, batch in enumerate(batches):
        if number == 3:
            middle = whole.state_dict(), step.state_dict()
        step(batch, info(number))
    rest = keras_executor(keras, dropout=0.5)
    step = rest.train_step(d5.Adam())
    rest.load_state_dict(middle[0])
    step.load_state_dict(middle[1])
    for number, batch in enumerate(batches[3:], start=3):
        step(batch, info(number))
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(rest.state_dict()[name], value)


@pytest.mark.parametrize("native", [False, True])
def test_a_trainer_trains_a_keras_model(keras: Any, native: bool) -> None:
    centres, noise = 4 * np.eye(3, 4), np.random.default_rng(5).standard_normal((60, 4))
    label = np.arange(60) % 3
    data = ArrayDataset({"input": (centres[label] + noise).astype(np.float32), "label": label})
    optimizer = d5.framework("tensorflow").optimizer("adam")(lr=0.05) if native else d5.Adam(lr=0.05)
    trainer = d5.Trainer(keras_executor(keras), optimizer, d5.ShuffleSampler(data, 16), d5.OrderedSampler(data, 20))
    trainer.train(10)
    # Three clouds, their centers more than five deviations apart; 40 steps are plenty.
    assert trainer.scores["accuracy"] > 90


def test_what_is_no_keras_model_that_runs(keras: Any) -> None:
    from deep5.frameworks.tensorflow.native import from_keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(UsageError, match=r"got function, .*; allowed: a keras.Model and a function"):
        from_keras(model, loss, inputs=INPUTS)
    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(UsageError, match=r"is not built; remedy: call model.build"):
        from_keras(unbuilt, loss, inputs=INPUTS)
    with pytest.raises(UsageError, match="allowed: inputs of the model, then the label"):
        from_keras(model(keras), loss, inputs={"label": INPUTS["label"]})
    with pytest.raises(
        UsageError, match=r"the model 'seq.*' does not run on input float32\[2, 5\] \(ValueError: Input 0"
    ):
        from_keras(model(keras), loss, inputs={**INPUTS, "input": TensorSpec(shape=("N", 5))})
