"""`Alternating`: a GAN's step as PyTorch takes it, parts that stay as they are, and resumed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import RuleError, ShapeError, UnknownName, UsageError

FRAMEWORKS = ("reference", "pytorch", "onnxruntime", "tensorflow", "jax")
SMALL = {"image": 4, "latent": 3, "hidden": (7, 5)}
DRAW = np.random.default_rng(0)
BATCH = {"input": DRAW.random((6, 1, 4, 4)), "latent": DRAW.standard_normal((6, 3))}


def alternating(first: Any = None, second: Any = None) -> d5.Alternating:
    return d5.Alternating({
        "discriminator": d5.Turn(first or d5.Adam(0.01, beta1=0.5), loss="loss", parameters="discriminator.*"),
        "generator": d5.Turn(second or d5.SGD(0.1), loss="generator_loss", parameters="generator.*"),
    })  # fmt: skip


def bound(framework: str = "reference", optimizer: Any = None, dtype: str = "float64") -> tuple[Any, Any]:
    network = d5.networks.gan(**SMALL, dtype=dtype)
    # Not zero: a leaky ReLU of exactly 0 has another derivative on ONNX Runtime in float64.
    draw = np.random.default_rng(3)
    biases = [name for name in network.parameter_specs if name.endswith("bias")]
    network = network.with_values({
        name: (0.1 * draw.standard_normal(network.initial(name).shape)).astype(dtype) for name in biases
    })  # fmt: skip
    executor = d5.framework(framework).executor(network)
    optimizer = optimizer or alternating()
    optimizer.bind(executor)
    return executor, optimizer


def info(step: int = 0) -> d5.StepInfo:
    return d5.StepInfo(step=step, batch_size=6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_steps_equal_those_of_pytorch(framework: str) -> None:
    """The usual loop of two optimizers in torch, in float64: Adam for one network, gradient descent for the other."""
    torch = pytest.importorskip("torch")
    executor, optimizer = bound(framework)
    w = {name: torch.tensor(value, requires_grad=True) for name, value in executor.network.parameters().items()}
    parts = {part: [value for name, value in w.items() if name.startswith(part)] for part in ("disc", "gen")}
    assert len(parts["disc"]) == len(parts["gen"]) == 6
    rules = torch.optim.Adam(parts["disc"], lr=0.01, betas=(0.5, 0.999)), torch.optim.SGD(parts["gen"], lr=0.1)
    function = torch.nn.functional

    def layers(x: Any, part: str, activation: Any) -> Any:
        for index in range(3):
            x = activation(x) if index else x
            x = function.linear(x, w[f"{part}.{index}.weight"], w[f"{part}.{index}.bias"])
        return x

    def score(images: Any) -> Any:
        # ONNX stores the slope of 0.2 in float32.
        return layers(2 * images - 1, "discriminator", lambda x: function.leaky_relu(x, float(np.float32(0.2))))

    real, latent = torch.tensor(BATCH["input"]).flatten(1), torch.tensor(BATCH["latent"])
    logits = function.binary_cross_entropy_with_logits
    for number in range(4):
        fake = torch.sigmoid(layers(latent, "generator", torch.relu))
        loss = logits(score(real), torch.ones(6, 1).double()) + logits(score(fake.detach()), torch.zeros(6, 1).double())
        rules[0].zero_grad()
        loss.backward()
        rules[0].step()
        generator_loss = logits(score(fake), torch.ones(6, 1).double())
        rules[1].zero_grad()
        generator_loss.backward()
        rules[1].step()
        outputs = optimizer.step(BATCH, info(number))
        # Sums of at most some tens of terms near 1, in another order, and four steps.
        near = {"rtol": 1e-11, "atol": 1e-12}
        np.testing.assert_allclose(float(d5.to_numpy(outputs["loss"])), loss.item(), **near)
        np.testing.assert_allclose(float(d5.to_numpy(outputs["generator_loss"])), generator_loss.item(), **near)
        found = d5.to_numpy(outputs["generated"]).reshape(6, -1)
        np.testing.assert_allclose(found, fake.detach().numpy(), **near)
        for name, value in executor.state_dict().items():
            if name in w:
                np.testing.assert_allclose(value, w[name].detach().numpy(), **near, err_msg=name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_turn_leaves_the_other_part_bit_identical(framework: str) -> None:
    """By turns of length zero: a rule without a step changes nothing, and the other turn changes only its own part."""
    for still in ("discriminator", "generator"):
        rules = [d5.SGD(0.0) if name == still else d5.Adam(0.05) for name in ("discriminator", "generator")]
        executor, optimizer = bound(framework, alternating(*rules), "float32")
        batch = {name: value.astype(np.float32) for name, value in BATCH.items()}
        before = executor.state_dict()
        for number in range(3):
            optimizer.step(batch, info(number))
        after = executor.state_dict()
        for name in executor.network.parameter_specs:
            assert (before[name].tobytes() == after[name].tobytes()) == name.startswith(still), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_rule_has_the_state_of_its_own_parameters_only(framework: str) -> None:
    executor, optimizer = bound(framework, alternating(d5.Adam(), d5.Momentum()))
    optimizer.step(BATCH, info())
    state = optimizer.state_dict()
    assert list(state) == ["discriminator", "generator"]
    for part, own in state.items():
        named = {key.partition("/")[2] for key, value in own.items() if key != "hyper" and np.ndim(value)}
        assert named == {name for name in executor.network.parameter_specs if name.startswith(part)}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("after", [3, 8])
def test_an_interrupted_training_resumes_bit_identically(framework: str, after: int, tmp_path: Path) -> None:
    from deep5.training.checkpoint_file import read_checkpoint, write_checkpoint

    data = d5.datasets.digits(size=8, labels=False)

    def trainer() -> d5.Trainer:
        executor = d5.framework(framework).executor(d5.networks.gan(image=8, latent=4, hidden=(16,)))
        sampler = d5.ShuffleSampler(data.train, 256, seed=3, transforms=[d5.DrawLatent(4)])
        return d5.Trainer(executor, alternating(d5.Adam(0.01), d5.Adam(0.01)), sampler, seed=5)

    class Save(d5.Event):
        def after_all(self, trainer: Any) -> None:
            if trainer.step == after:
                write_checkpoint(tmp_path / "state.safetensors", trainer.state_dict(), {})
                raise d5.StopTraining("interrupted")

    schedule = {"generator.lr": d5.Cosine(0.01)}
    whole, first, second = trainer(), trainer(), trainer()
    whole.train(2, [d5.Scheduled(schedule)])
    first.train(2, [d5.Scheduled(schedule), Save()])
    second.load_state_dict(read_checkpoint(tmp_path / "state.safetensors")[0])
    second.train(2 - second.epoch, [d5.Scheduled(schedule)])
    assert second.step == whole.step == 12
    for name, value in whole.executor.state_dict().items():
        np.testing.assert_array_equal(second.executor.state_dict()[name], value)


def test_three_losses_in_turn() -> None:
    """Of a network without any relation to GANs: three parameters, each with its own square to minimize."""
    build = d5.NetworkBuilder("three", dtype="float64")
    x = build.input("input", ("N", 1))
    outputs = {}
    for name, goal in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        away = build.op("Sub", build.op("Add", build.parameter(name, (1,), d5.networks.zeros), x), build.scalar(goal))
        outputs[f"{name}_loss"] = build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)
    executor = d5.framework("reference").executor(build.network(outputs))
    optimizer = d5.Alternating({
        name: d5.Turn(d5.SGD(rate), loss=f"{name}_loss", parameters=name)
        for name, rate in (("c", 0.5), ("a", 0.25), ("b", 0.125))
    })  # fmt: skip
    optimizer.bind(executor)
    found = optimizer.step({"input": np.zeros((2, 1))}, d5.StepInfo(batch_size=2))
    assert {name: float(value) for name, value in found.items()} == {"a_loss": 1.0, "b_loss": 4.0, "c_loss": 9.0}
    # w - rate * 2 * (0 - goal)
    assert {name: value.item() for name, value in executor.parameters().items()} == {"a": 0.5, "b": 0.5, "c": 3.0}


def test_hyperparameters_of_one_turn_and_of_all() -> None:
    optimizer = alternating(d5.Adam(0.01), d5.Adam(0.02))
    optimizer.set_hyper("generator.lr", 0.5)  # before it is bound
    executor, _ = bound(optimizer=optimizer)
    assert (optimizer.hyper["discriminator.lr"], optimizer.hyper["generator.lr"]) == (0.01, 0.5)
    optimizer.set_hyper("lr", 0.25)
    assert (optimizer.hyper["discriminator.lr"], optimizer.hyper["generator.lr"]) == (0.25, 0.25)
    assert optimizer.describe()["turns"]["generator"]["lr"] == 0.25
    with pytest.raises(UnknownName, match=r"'momentum'.*discriminator\.lr"):
        optimizer.set_hyper("momentum", 0.1)
    with pytest.raises(UsageError, match="lr"):
        optimizer.set_hyper("generator.lr", float("nan"))
    assert "lr" in alternating(d5.Adam(), d5.SGD()).changeable
    assert "beta1" not in alternating(d5.Adam(), d5.SGD()).changeable
    assert executor.network.frozen == frozenset()


def test_the_rules_given_are_not_changed_and_bind_again() -> None:
    rule = d5.Adam(0.01)
    optimizer = alternating(rule, rule)
    executor, _ = bound(optimizer=optimizer)
    optimizer.step(BATCH, info())
    first = executor.state_dict()
    optimizer.bind(again := d5.framework("reference").executor(executor.network))
    optimizer.step(BATCH, info())
    for name, value in again.state_dict().items():
        np.testing.assert_array_equal(value, first[name])
    optimizer.set_hyper("generator.lr", 9.0)
    assert rule.lr == 0.01


def test_what_is_refused() -> None:
    adam, gan = d5.Adam(), d5.networks.gan(**SMALL)
    executor = d5.framework("reference").executor(gan)
    for turns, message in (
        ({}, "as turns; allowed: a dict of d5.Turn"),
        ({"a": adam}, "allowed: a dict of d5.Turn"),
    ):
        with pytest.raises(UsageError, match=message):
            d5.Alternating(turns)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Turn: got 'adam' as a rule"):
        d5.Turn("adam", loss="loss", parameters="*")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="got parameters=''"):
        d5.Turn(adam, loss="loss", parameters="")
    only = d5.Turn(adam, loss="loss", parameters="discriminator.*")
    whole = d5.Turn(adam, loss="generator_loss", parameters="*")
    for turns, message in (
        ({"d": only}, r"the parameter 'generator\.0\.weight' belongs to no turn; .* network\.freeze"),
        ({"d": only, "all": whole}, "belongs to the turns d, all"),
        ({"all": whole, "none": d5.Turn(adam, loss="loss", parameters="x*")}, r"'x\*' of the turn 'none' matches no"),
        ({"all": d5.Turn(d5.AveragedSGD(), loss="loss", parameters="*")}, "AveragedSGD of the turn 'all' has other"),
    ):
        with pytest.raises(RuleError, match=message):
            d5.Alternating(turns).bind(executor)
    with pytest.raises(UsageError, match="remedy: call bind"):
        d5.Alternating({"all": whole}).step(BATCH, info())
    with pytest.raises(UsageError, match="no_loss"):
        d5.Alternating({"all": d5.Turn(adam, loss="no_loss", parameters="*")}).bind(executor)
    _, optimizer = bound()
    with pytest.raises(ShapeError, match="has the turns a; allowed: discriminator, generator"):
        optimizer.load_state_dict({"a": {}})
    data = d5.datasets.digits(size=8, labels=False)
    sampler = d5.ShuffleSampler(data.train, 64, transforms=[d5.DrawLatent(3)])
    small = d5.framework("reference").executor(d5.networks.gan(image=8, latent=3, hidden=(4,)))
    with pytest.raises(UsageError, match="accumulate=2 with Alternating, which owns its step"):
        d5.Trainer(small, alternating(), sampler, accumulate=2)


def test_a_network_with_a_frozen_part_needs_no_turn_for_it() -> None:
    network = d5.networks.gan(**SMALL).freeze("generator.*")
    executor = d5.framework("reference").executor(network)
    optimizer = d5.Alternating({"d": d5.Turn(d5.SGD(0.1), loss="loss", parameters="discriminator.*")})
    optimizer.bind(executor)
    before = executor.state_dict()
    optimizer.step({name: value.astype(np.float32) for name, value in BATCH.items()}, info())
    changed = {name for name, value in executor.state_dict().items() if (value != before[name]).any()}
    assert changed == {name for name in network.parameter_specs if name.startswith("discriminator")}


def test_latent_vectors_belong_to_sample_and_epoch() -> None:
    draw, images = d5.DrawLatent(5, seed=2), np.zeros((4, 1, 8, 8), np.float32)
    found = draw({"input": images}, np.arange(4), 1)
    assert found["latent"].dtype == np.float32
    np.testing.assert_array_equal(draw({"input": images[:1]}, np.array([2]), 1)["latent"][0], found["latent"][2])
    assert (draw({"input": images}, np.arange(4), 2)["latent"] != found["latent"]).all()
    assert found["input"] is images
    with pytest.raises(UsageError, match="size=0; allowed: an integer of at least 1"):
        d5.DrawLatent(0)
    with pytest.raises(UsageError, match="count is -1; allowed: an integer of at least 1"):
        draw.generate(None, -1, 0)
    with pytest.raises(UsageError, match="samples are uint8"):
        draw({"input": np.zeros((2, 3), np.uint8)}, np.arange(2), 0)


def test_generated_images_are_those_of_the_generator() -> None:
    network = d5.networks.gan(**SMALL, dtype="float64")
    executor = d5.framework("reference").executor(network)
    found = d5.DrawLatent(3).generate(executor, 6, seed=4)
    latent = d5.generator(4, "latent").standard_normal((6, 3))
    np.testing.assert_array_equal(found, executor.inference({**BATCH, "latent": latent})["generated"])
    assert found.shape == (6, 1, 4, 4)
    lenet = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    with pytest.raises(UsageError, match="remedy: the network gan"):
        d5.DrawLatent(3).generate(lenet, 2, 0)
    broken = network.with_values({"generator.2.bias": np.full(16, np.nan)})
    with pytest.raises(UsageError, match="not finite: training has diverged"):
        d5.DrawLatent(3).generate(d5.framework("reference").executor(broken), 2, 0)


def test_bad_arguments_of_the_network() -> None:
    for options, message in (
        ({"hidden": 5}, "got hidden = 5"),
        ({"hidden": (0,)}, r"hidden\[0\] = 0"),
        ({"latent": 0}, "latent = 0"),
    ):
        with pytest.raises(UsageError, match=message):
            d5.networks.gan(**options)  # type: ignore[arg-type]
