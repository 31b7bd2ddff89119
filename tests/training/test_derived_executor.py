"""A subclass of `d5.GraphExecutor` with two methods trains; what cannot be derived is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.errors import NetworkError, ShapeError, Unsupported, UsageError
from deep5.core.executors import ParameterGroup
from deep5.networks import NetworkBuilder, mlp
from deep5.networks.engine import engine_model
from deep5.networks.gradients import gradient_network


def compiled(network: d5.Network) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    evaluator = ReferenceEvaluator(onnx.load_from_string(engine_model(network)))
    return lambda inputs: dict(zip(network.outputs, map(np.asarray, evaluator.run(None, inputs)), strict=True))


class Compiled(d5.GraphExecutor):
    """As the tutorial writes one, for a compiler of networks."""

    def __init__(self, model: Any, device: Any = None, events: Any = ()) -> None:
        super().__init__(model, events)  # type: ignore[safe-super, call-arg]
        self.compiled_inference = compiled(model)
        self.compiled_training = compiled(gradient_network(model, "loss", [*model.parameter_specs, "input"]))

    def inference(self, input: dict[str, np.ndarray]) -> dict[str, np.ndarray]:  # type: ignore[override]  # noqa: A002
        return self.compiled_inference({**input, **self.parameters()})

    def inference_and_backprop(  # type: ignore[override]
        self,
        input: dict[str, np.ndarray],  # noqa: A002
        y: str = "loss",
    ) -> dict[str, np.ndarray]:
        return self.compiled_training({**input, **self.parameters(), "loss_scale": np.array(1, np.float32)})


Made: Any = Compiled  # type checkers do not know that it is complete


def batch(size: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {"input": draw.standard_normal((size, 4)).astype(np.float32), "label": draw.integers(0, 3, size)}


def pair() -> tuple[Any, d5.GraphExecutor]:
    network = mlp(features=4, hidden=5, classes=3)
    return Made(network), d5.framework("reference").executor(network)


def close(got: Any, want: Any, names: Iterable[str] | None = None) -> None:
    assert names is not None or got.keys() == want.keys()
    for name in names or want:
        np.testing.assert_allclose(d5.to_numpy(got[name]), d5.to_numpy(want[name]), rtol=1e-4, atol=1e-6)


def test_it_is_a_graph_executor_of_its_class() -> None:
    executor, _ = pair()
    assert isinstance(executor, Compiled)
    assert isinstance(executor, d5.GraphExecutor)
    assert type(executor).__qualname__ == "Compiled"
    assert type(executor) is type(Made(mlp(features=4, hidden=5, classes=3)))


def test_calls_equal_the_references() -> None:
    executor, reference = pair()
    close(executor.inference(batch()), reference.inference(batch()))
    for options in (
        {},
        {"accumulate": True},
        {"loss_scale": 4.0},
        {"accumulate": True, "loss_scale": 0.3},
        {"wrt": ["input"]},
    ):
        close(executor.inference_and_backprop(batch(), **options), reference.inference_and_backprop(batch(), **options))
        close(executor.gradients(), reference.gradients())
    seen: dict[str, Any] = {}
    executor.inference_and_backprop(batch(seed=1), on_gradient=seen.__setitem__)
    close(seen, executor.gradients())
    kept = {name: value.copy() for name, value in executor.gradients().items()}
    earlier = executor.gradients()
    executor.inference_and_backprop(batch(seed=2))
    close(earlier, kept)


@pytest.mark.parametrize("rule", ["adam", "momentum", "accelegrad"])
def test_steps_equal_the_references(rule: str) -> None:
    from deep5.core.plugins import load

    ends = []
    for executor in pair():
        groups = [ParameterGroup(lambda name: name.endswith("bias"), lr=0.01)]
        step = executor.train_step(load("optimizers", rule)(lr=0.05), groups=groups)
        for number in range(10):
            step(batch(seed=number), d5.StepInfo(step=number, batch_size=6))
        state = step.state_dict()
        step.backprop(batch(), d5.StepInfo(step=10, batch_size=6))
        step.apply(executor.gradients(), d5.StepInfo(step=10, batch_size=6))
        step.load_state_dict(state)
        executor.inference_and_backprop(batch(seed=3), accumulate=True)
        ends.append({**executor.state_dict(), "loss": executor.inference(batch())["loss"]})
    close(*ends)


def test_a_trainer_and_a_recipe_run_it(tmp_path: Path) -> None:
    result = d5.run_recipe(
        {"model": "mlp", "dataset": "synthetic", "dataset_kwargs": {"shape": (784,), "train": 256}, "epochs": 2},
        {"batch_size": 64, "executor": Compiled, "optimizer": "adam"},
        [(d5.TestAccuracy(), None), (d5.TrainingLoss(), None)],
        out=tmp_path,
        quiet=True,
    )
    assert result.status == "success"
    assert result.document["framework"]["name"] == "Compiled"


def test_copies_and_export() -> None:
    executor, _ = pair()
    names = list(executor.network.parameter_specs)
    state = executor.state_dict()
    out = np.empty(sum(value.size for value in state.values()), np.float32)
    executor.read(names, out)
    executor.write(names, 2 * out)
    np.testing.assert_array_equal(executor.export().initial(names[0]), 2 * state[names[0]])
    executor.load_state_dict(state)
    close(executor.state_dict(), state)
    executor.synchronize()
    assert executor.settings() == {"framework": "Compiled", "device": "cpu", "dtype": "float32"}


def special(kind: str) -> d5.Network:
    build = NetworkBuilder(kind)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    if kind == "dropout":
        x = build.op("Dropout", x, build.constant("ratio", np.float32(0.5)))
    else:
        affine = [build.parameter(name, (4,), d5.networks.ones) for name in ("scale", "bias", "mean", "variance")]
        x = build.op("BatchNormalization", x, *affine)
    x = build.op("Gemm", x, build.parameter("w", (3, 4)), transB=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})


@pytest.mark.parametrize("kind", ["dropout", "normalized"])
def test_layers_that_differ_in_training_need_their_parameters(kind: str) -> None:
    class Mine(d5.GraphExecutor):
        def inference(self, inputs: Any) -> Any:  # type: ignore[override]
            return {"logits": np.zeros((6, 3), np.float32), "loss": np.float32(0)}

        def inference_and_backprop(self, inputs: Any, loss: str = "loss") -> Any:  # type: ignore[override]
            raise AssertionError("not called")

    made: Any = Mine
    executor = made(special(kind))
    executor.inference(batch())
    message = "lacks the parameters 'training' and 'info', which a network with dropout or batch normalization needs"
    with pytest.raises(Unsupported, match=f"Mine.inference_and_backprop {message}"):
        executor.inference_and_backprop(batch())
    with pytest.raises(Unsupported, match=f"Mine.inference {message}"):
        executor.inference(batch(), training=True)


def variant(returned: Callable[[dict[str, Any]], Any]) -> Any:
    class Mine(Compiled):
        def inference_and_backprop(self, inputs: Any, y: str = "loss") -> Any:
            return returned(super().inference_and_backprop(inputs, y))

    made: Any = Mine
    return made(mlp(features=4, hidden=5, classes=3))


@pytest.mark.parametrize(
    ("returned", "kind", "message"),
    [
        (
            lambda found: {name: value for name, value in found.items() if not name.startswith("grad:fc1")},
            Unsupported,
            r"Mine has no gradient by fc1.weight, fc1.bias; .*remedy: return 'grad:fc1.weight', 'grad:fc1.bias' beside",
        ),
        (
            lambda found: None,
            NetworkError,
            "backprop returned None; allowed: a dict with the outputs",
        ),
        (lambda found: {"loss": found["loss"]}, NetworkError, "returned loss; missing: logits; allowed"),
        (
            lambda found: {**found, "grad:fc1.bias": np.zeros(7, np.float32)},
            ShapeError,
            r"by 'fc1.bias': got shape \(7,",
        ),
        (lambda found: {**found, "grad:fc1.bias": np.zeros(5)}, ShapeError, "got dtype float64, expected float32"),
        (lambda found: 1 / 0, NetworkError, "Mine cannot run the network on these inputs .division by zero"),
    ],
)
def test_wrong_results_are_reported(returned: Any, kind: type[Exception], message: str) -> None:
    executor = variant(returned)
    with pytest.raises(kind, match=message):
        executor.inference_and_backprop(batch())
    with pytest.raises(Unsupported, match="there are no gradients; remedy"):
        executor.gradients()


def test_wrong_inputs_and_arguments_are_refused() -> None:
    executor, _ = pair()
    for wrong in ({}, {**batch(), "more": 1}, {**batch(), "input": batch()["input"][:, :2]}):
        with pytest.raises(ShapeError):
            executor.inference(wrong)
    with pytest.raises(UsageError, match=r"got \[1\] as the events of an executor; allowed: none; remedy: train"):
        Made(mlp(features=4, hidden=5, classes=3), None, [1])
    with pytest.raises(UsageError, match="Network"):
        Made("lenet.onnx")

    class Forgets(Compiled):
        def __init__(self, model: Any) -> None:
            pass

    made: Any = Forgets
    with pytest.raises(UsageError, match=r"Forgets does not define .*remedy: super\(\).__init__\(model\)"):
        made(mlp(features=4, hidden=5, classes=3))


def test_another_loss_needs_a_parameter() -> None:
    class Mine(d5.GraphExecutor):
        def inference(self, inputs: Any) -> Any:  # type: ignore[override]
            return {}

        def inference_and_backprop(self, inputs: Any) -> Any:  # type: ignore[override]
            return {}

    build = NetworkBuilder("two")
    x = build.op(
        "ReduceSum", build.op("Mul", build.input("x", (3,)), build.parameter("w", (3,), d5.networks.ones)), keepdims=0
    )
    network = build.network({"loss": x, "other": build.op("Neg", x)})
    made: Any = Mine
    with pytest.raises(Unsupported, match="lacks a second parameter, the name of the loss, which the loss 'other'"):
        made(network).inference_and_backprop({"x": np.ones(3, np.float32)}, "other")


def test_methods_of_the_class_take_precedence() -> None:
    class Mine(Compiled):
        def settings(self) -> dict[str, Any]:
            return {"framework": "mine", "threads": 3, "dtype": "float32"}

        def inference_and_backprop(self, inputs: Any, y: str = "loss") -> Any:
            self.kept = super().inference_and_backprop(inputs, y)
            return {name: value for name, value in self.kept.items() if not name.startswith("grad:")}

        def gradients(self) -> Any:
            return {name.removeprefix("grad:"): value for name, value in self.kept.items() if name.startswith("grad:")}

    made: Any = Mine
    executor = made(mlp(features=4, hidden=5, classes=3))
    assert executor.settings()["threads"] == 3
    step = executor.train_step(d5.SGD(lr=0.1))
    before = executor.state_dict()
    step(batch(), d5.StepInfo(batch_size=6))
    moved = executor.state_dict()
    for name in before:
        np.testing.assert_allclose(moved[name], before[name] - np.float32(0.1) * executor.gradients()[name], rtol=1e-5)
