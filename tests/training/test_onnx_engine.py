"""`ONNXEngine`: a back-end of two methods passes the conformance suite and trains; wrong engines are reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.complete import PartialClassError
from deep5.core.errors import NetworkError, Unsupported, UsageError
from deep5.networks import NetworkBuilder, lenet, mlp


class Sessions(d5.ONNXEngine):
    """ONNX Runtime, used directly."""

    name = "sessions"
    requires = ("onnxruntime",)

    def version(self) -> str:
        import onnxruntime

        return str(onnxruntime.__version__)

    def compile(self, model: bytes, *, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, inputs)


class Evaluator(d5.ONNXEngine):
    """ONNX's own evaluator."""

    name = "evaluator"
    requires = ("onnx",)
    capabilities = frozenset({"float64"})

    def version(self) -> str:
        return str(onnx.__version__)

    def compile(self, model: bytes, *, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
        evaluator = ReferenceEvaluator(onnx.load_from_string(model))

        def run(inputs: dict[str, np.ndarray]) -> Any:
            with np.errstate(all="ignore"):
                return evaluator.run(None, inputs)

        return run


def batch(network: d5.Network, size: int = 4) -> dict[str, np.ndarray]:
    draw, spec = np.random.default_rng(0), network.inputs["input"]
    shape = (size, *(int(extent) for extent in spec.shape[1:]))
    return {"input": draw.standard_normal(shape).astype(spec.dtype), "label": draw.integers(0, 3, size)}


@pytest.mark.parametrize("engine", [Sessions, Evaluator])
def test_an_engine_of_two_methods_passes_the_conformance_suite(engine: type[d5.ONNXEngine]) -> None:
    d5.check_executor(engine())


@pytest.mark.daily
@pytest.mark.parametrize(("engine", "steps"), [(Sessions, 20), (Evaluator, 2)])
def test_lenet_trains_as_on_the_reference(engine: type[d5.ONNXEngine], steps: int) -> None:
    network, losses = lenet(seed=1), []
    for framework in (d5.framework("reference"), engine()):
        executor = framework.executor(network)
        step = executor.train_step(d5.Adam(0.003))
        values = [step(batch(network), d5.StepInfo(step=number, batch_size=4))["loss"] for number in range(steps)]
        losses.append([float(d5.to_numpy(value)) for value in values])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4, atol=1e-6)
    assert losses[0][-1] < losses[0][0]


def test_dropout_statistics_and_operators_that_the_engine_lacks_work() -> None:
    class Poor(Sessions):
        name = "poor"

        def compile(self, model: bytes, *, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
            if any(node.op_type == "HardSwish" for node in onnx.load_from_string(model).graph.node):
                raise NotImplementedError("no HardSwish")
            return super().compile(model, threads=threads)

    build = NetworkBuilder("modes")
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    affine = [build.parameter(name, (4,), d5.networks.ones) for name in ("scale", "bias", "mean", "variance")]
    x = build.op("BatchNormalization", x, *affine)
    x = build.op("Dropout", build.op("HardSwish", x), build.constant("ratio", np.float32(0.5)))
    x = build.op("Gemm", x, build.parameter("w", (3, 4)), transB=1)
    network = build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})
    found = []
    for framework in (d5.framework("reference"), Poor()):
        executor = framework.executor(network)
        executor.inference_and_backprop(batch(network), info=d5.StepInfo(step=3, seed=2))
        found.append({**executor.gradients(), **executor.buffers()})
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-6)


def test_operators_run_forward_and_backward() -> None:
    executor = Sessions().operator_executor(d5.ONNXOperator("Tanh"))
    x = np.array([0.5, -1.0], np.float32)
    (y,), (grad,) = executor.inference_and_backprop(executor.arrays(x), executor.arrays(np.ones_like(x)))
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-6)
    np.testing.assert_allclose(grad, 1 - np.tanh(x) ** 2, rtol=1e-5)
    assert executor.settings()["framework"] == "sessions"


def test_threads_reach_the_engine_and_are_reported() -> None:
    engine = Sessions()
    executor = engine.executor(mlp(features=4, hidden=3, classes=3))
    before = engine.threads
    try:
        for threads in (2, 1):
            engine.set_threads(threads)
            assert executor.settings()["threads"] == threads
    finally:
        engine.set_threads(before)


def test_memory_that_the_engine_keeps_is_copied() -> None:
    """Results that are inputs, parameters, views, or the engine's own buffer stay as they are."""

    class Keeps(Evaluator):
        name = "keeps"

        def compile(self, model: bytes, *, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
            run = super().compile(model, threads=threads)
            kept: dict[int, np.ndarray] = {}

            def again(inputs: dict[str, np.ndarray]) -> Any:
                results = []
                for number, value in enumerate(run(inputs)):
                    place = kept.setdefault(number, np.empty_like(value))
                    place[...] = value
                    results.append(place if number % 2 else place[...])
                return results

            return again

    build = NetworkBuilder("shares")
    x, w = build.input("x", (3,)), build.parameter("w", (3,), d5.networks.ones)
    total = build.op("Mul", x, w)
    network = build.network(
        {
            "same": build.op("Identity", w),
            "fed": build.op("Identity", x),
            "loss": build.op("ReduceSum", total, keepdims=0),
        }
    )
    for engine in (Evaluator(), Keeps()):
        executor = engine.executor(network)
        feed = {"x": np.arange(3, dtype=np.float32)}
        first = executor.inference_and_backprop(feed)
        gradient = executor.gradients()["w"]
        arrays = [*first.values(), gradient, *executor.parameters().values(), feed["x"]]
        for index, one in enumerate(arrays):
            assert not any(np.shares_memory(one, other) for other in arrays[:index])
        kept = {name: value.copy() for name, value in first.items()}
        executor.parameters()["w"][...] = 5
        executor.inference_and_backprop({"x": feed["x"] + 7})
        for name, value in kept.items():
            np.testing.assert_array_equal(first[name], value)
        np.testing.assert_array_equal(gradient, feed["x"])


def test_a_class_without_a_method_is_refused_by_name() -> None:
    class Half(d5.ONNXEngine):
        name = "half"

        def version(self) -> str:
            return "1"

    with pytest.raises(PartialClassError, match="Half does not define compile"):
        Half()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda values: values[:1], r"broken returned 1 outputs for the network 'mlp'; allowed: 2, in the order"),
        (lambda values: [values[0].astype("float64"), *values[1:]], r"'logits' .*got dtype float64, expected float32"),
        (lambda values: [values[0][0], *values[1:]], r"'logits' .*got shape \(3,\)"),
        (lambda values: 1 / 0, "broken cannot run the network on these inputs .division by zero"),
        (lambda values: None, "broken cannot run the network on these inputs .*NoneType"),
    ],
)
def test_wrong_results_are_reported(returned: Callable[[Any], Any], message: str) -> None:
    class Broken(Evaluator):
        name = "broken"

        def compile(self, model: bytes, *, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
            run = super().compile(model, threads=threads)
            return lambda inputs: returned(run(inputs))

    network = mlp(features=4, hidden=3, classes=3)
    with pytest.raises(NetworkError, match=message):
        Broken().executor(network).inference(batch(network))


def test_what_the_engine_does_not_compile_is_unsupported_with_its_reason() -> None:
    class Refuses(Evaluator):
        name = "refuses"

        def compile(self, model: bytes, *, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
            raise KeyError("no license")

    class Forgets(Evaluator):
        name = "forgets"

        def compile(self, model: bytes, *, threads: int) -> Any:
            return None

    network = mlp(features=4, hidden=3, classes=3)
    with pytest.raises(Unsupported, match=r"refuses cannot run this network:\n.*KeyError: .no license"):
        Refuses().executor(network)
    with pytest.raises(UsageError, match="compile of Forgets returns None; allowed: a function"):
        Forgets().executor(network).inference(batch(network))
    with pytest.raises(Unsupported, match="evaluator does not run on device 'cuda:0'; allowed: cpu"):
        Evaluator().executor(network, device="cuda")


def test_the_engine_of_the_guide_has_at_most_sixty_lines() -> None:
    guide = (Path(__file__).parents[2] / "docs/how_to/backends.md").read_text(encoding="utf-8")
    start = (Path(__file__).parents[2] / "deep5/cli/starts/framework/my_name.py.txt").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in guide.split("```python\n")[1:]]
    (engine,) = [block for block in blocks if "d5.ONNXEngine" in block]
    for source in (engine, start):
        assert 0 < len(source.splitlines()) <= 60
