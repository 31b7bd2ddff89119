"""Requirements on every engine that only runs ONNX forward: `EngineSuite`, the base of each engine's tests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx.reference
import onnx_ir as ir
import pytest

import deep5 as d5
from deep5.core.errors import Deep5Error, NetworkError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, ParameterGroup
from deep5.networks import NetworkBuilder, lenet, mlp, ones, zeros
from deep5.networks.check import check_executor
from deep5.networks.judge import ConformanceError
from deep5.training.gradient_executor import GradientExecutor

# Float32 over a few layers of some hundred terms each; both sides round.
CLOSE = 2e-5


def classifier(*, dropout: float = 0.0, normalised: bool = False, dtype: str = "float32") -> d5.Network:
    """Convolution, optional dropout and normalization, tanh, a linear layer."""
    build = NetworkBuilder("classifier", dtype=dtype, seed=1)
    x, label = build.input("input", ("N", 2, 6, 6)), build.input("label", ("N",), "int64")
    x = build.op("Conv", x, build.parameter("conv", (3, 2, 3, 3)), kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    if normalised:
        affine = [build.parameter(name, (3,), init) for name, init in (("scale", ones), ("bias", zeros))]
        running = [build.parameter(name, (3,), init) for name, init in (("mean", zeros), ("variance", ones))]
        x = build.op("BatchNormalization", x, *affine, *running, momentum=0.75)
    x = build.op("Flatten", build.op("Tanh", x))
    if dropout:
        x = build.op("Dropout", x, build.constant("ratio", np.array(dropout, dtype)))
    x = build.op("Gemm", x, build.parameter("fc", (5, 27)), build.parameter("fc.bias", (5,), zeros), transB=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})


def feed(network: d5.Network, size: int = 6, seed: int = 0, classes: int = 5) -> dict[str, np.ndarray]:
    draw, spec = np.random.default_rng(seed), network.inputs["input"]
    shape = (size, *(int(extent) for extent in spec.shape[1:]))
    return {"input": draw.standard_normal(shape).astype(spec.dtype), "label": draw.integers(0, classes, size)}


def close(got: Mapping[str, Any], want: Mapping[str, Any], tolerance: float = CLOSE) -> None:
    assert got.keys() == want.keys()
    for name, exact in want.items():
        error = np.linalg.norm(np.asarray(got[name]) - exact)
        assert error <= tolerance * max(float(np.linalg.norm(exact)), 1e-3), name


class EngineSuite:
    """Derive and set `name`; pytest collects classes that begin with Test."""

    name: str

    @pytest.fixture(autouse=True)
    def one_thread(self) -> Iterator[None]:
        """The tests share two cores with other processes; the number is restored at the end."""
        framework: Any = d5.framework(self.name)
        before = framework.threads
        framework.set_threads(1)
        yield
        framework.set_threads(before)

    def executor(self, network: d5.Network, **options: Any) -> GradientExecutor:
        made: Any = d5.framework(self.name).executor(network, **options)
        return made

    def pair(self, network: d5.Network) -> tuple[GradientExecutor, GraphExecutor]:
        return self.executor(network), d5.framework("reference").executor(network)

    def test_it_passes_the_conformance_suite(self) -> None:
        check_executor(self.name)

    def test_the_conformance_suite_catches_it_where_it_is_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that uses the weights from the time it was made."""
        kind = type(self.executor(mlp(features=2, hidden=2)))
        right = kind._backward

        def baked(executor: GradientExecutor, *args: Any) -> Any:
            live, executor._values = executor._values, {name: value.copy() for name, value in executor._values.items()}
            try:
                return right(executor, *args)
            finally:
                executor._values = live

        monkeypatch.setattr(kind, "_backward", baked)
        with pytest.raises(ConformanceError, match="steps of adam"):
            check_executor(self.name)

    @pytest.mark.parametrize(
        "options", [{}, {"dropout": 0.4}, {"normalised": True}, {"dropout": 0.4, "normalised": True}]
    )
    def test_it_trains_as_the_reference_does(self, options: dict[str, Any]) -> None:
        """Includes masks and running statistics; all parameters, then with one of them frozen."""
        network = classifier(**options)
        for groups in ((), (ParameterGroup(lambda name: name == "conv", frozen=True),)):
            executors = self.pair(network)
            steps = [executor.train_step(d5.Momentum(lr=0.1, momentum=0.9), groups=groups) for executor in executors]
            for index in range(8):
                info = StepInfo(step=index, batch_size=6, seed=3)
                batch = feed(network, 6 if index != 4 else 5, seed=index)
                outputs = [step(batch, info) for step in steps]
                close(outputs[0], outputs[1])
            close(executors[0].state_dict(), executors[1].state_dict())
            moved = executors[0].state_dict()["conv"] != network.initial("conv")
            assert moved.any() == (not groups)
            info = StepInfo(step=9, seed=3)
            close(
                executors[0].inference(batch, training=True, info=info),
                executors[1].inference(batch, training=True, info=info),
            )
            close(executors[0].inference(batch), executors[1].inference(batch))
            close(executors[0].state_dict(), executors[1].state_dict())

    def test_a_step_repeats_bit_for_bit(self) -> None:
        network = classifier(dropout=0.4, normalised=True)
        ends = []
        for _ in range(2):
            executor = self.executor(network)
            step = executor.train_step(d5.Adam(lr=0.01))
            for index in range(5):
                step(feed(network, seed=index), StepInfo(step=index, batch_size=6))
            ends.append(executor.state_dict())
        for name, value in ends[0].items():
            assert value.tobytes() == ends[1][name].tobytes(), name

    def test_what_a_call_gave_stays_as_it_is(self) -> None:
        executor, network = self.executor(classifier()), classifier()
        first, second = feed(network, seed=1), feed(network, seed=2)
        outputs = executor.inference_and_backprop(first)
        gradients = executor.gradients()
        forward = executor.inference(first)
        kept = [{k: v.copy() for k, v in values.items()} for values in (outputs, gradients, forward)]
        seen: dict[str, np.ndarray] = {}
        executor.inference_and_backprop(second, on_gradient=lambda name, value: seen.update({name: value}))
        before = {name: value.copy() for name, value in seen.items()}
        executor.inference_and_backprop(second, accumulate=True)
        total = {name: value.copy() for name, value in executor.gradients().items()}
        executor.inference_and_backprop(first)
        executor.inference(second)
        for now, then in zip((outputs, gradients, forward, seen), (*kept, before), strict=True):
            for name, value in then.items():
                np.testing.assert_array_equal(now[name], value)
        for name, value in before.items():
            np.testing.assert_array_equal(total[name], value + value)

    def test_gradients_add_up_over_any_number_of_calls(self) -> None:
        """Also without reading in between, so that memory is used again, and over other names."""
        network = classifier()
        executor = self.executor(network)
        single = []
        for seed in range(4):
            executor.inference_and_backprop(feed(network, seed=seed))
            single.append(executor.gradients())
        for _ in range(2):
            for seed in range(4):
                executor.inference_and_backprop(feed(network, seed=seed), accumulate=seed > 0)
            for name, value in executor.gradients().items():
                want = single[0][name] + single[1][name] + single[2][name] + single[3][name]
                np.testing.assert_array_equal(value, want)
            executor.inference_and_backprop(feed(network, seed=0))
        executor.inference_and_backprop(feed(network, seed=1), wrt=["fc"], accumulate=True)
        executor.inference_and_backprop(feed(network, seed=2), wrt=["fc"], accumulate=True)
        mixed = executor.gradients()
        close({"fc": mixed["fc"]}, {"fc": single[0]["fc"] + single[1]["fc"] + single[2]["fc"]})
        np.testing.assert_array_equal(mixed["conv"], single[0]["conv"])

    def test_a_training_loop_writes_to_the_same_memory(self) -> None:
        network = classifier()
        executor = self.executor(network)
        step = executor.train_step(d5.SGD(lr=0.1))
        places = []
        for size in (6, 6, 5, 6):
            step(feed(network, size), StepInfo(batch_size=size))
            places.append(list(executor._locate(list(network.parameter_specs))))
        assert all(place == places[0] for place in places)

    def test_parameters_are_read_where_they_lie(self) -> None:
        network = classifier(normalised=True)
        executor = self.executor(network)
        places = {name: value.ctypes.data for name, value in executor._values.items()}
        step = executor.train_step(d5.SGD(lr=0.1))
        before = executor.inference(feed(network))["logits"]
        step(feed(network), StepInfo(batch_size=6))
        executor.parameters()["fc.bias"][...] += 1
        executor.buffers()["mean"][...] = executor.network.initial("mean")
        executor.buffers()["variance"][...] = executor.network.initial("variance")
        executor.load_state_dict(
            {**executor.state_dict(), **{n: network.initial(n) for n in ("conv", "fc", "scale", "bias")}}
        )
        # Everything is as before except the bias, which a step of 0.1 and then 1 has moved; one more rounding.
        moved = executor._values["fc.bias"]
        np.testing.assert_allclose(executor.inference(feed(network))["logits"], before + moved, rtol=0, atol=1e-6)
        assert places == {name: value.ctypes.data for name, value in executor._values.items()}
        assert all(place % 64 == 0 for place in places.values())

    def test_nothing_shares_memory_that_should_not(self) -> None:
        build = NetworkBuilder("shared")
        x, w = build.input("x", (3,)), build.parameter("w", (3,), ones)
        total = build.op("Add", build.op("Add", w, build.parameter("v", (3,), ones)), x)
        network = build.network(
            {
                "loss": build.op("ReduceSum", build.op("Mul", total, total), keepdims=0),
                "same": build.op("Identity", w),
                "fed": build.op("Reshape", x, build.constant("to", np.array([3, 1]))),
                "sum": build.op("Identity", total),
            }
        )
        executor, fed = self.executor(network), {"x": np.arange(3, dtype=np.float32)}
        outputs = executor.inference_and_backprop(fed, wrt=["w", "v", "x"])
        arrays = [*outputs.values(), *executor.gradients().values(), *executor._values.values(), fed["x"]]
        for index, one in enumerate(arrays):
            assert one.flags.c_contiguous
            assert not any(np.shares_memory(one, other) for other in arrays[:index])
        np.testing.assert_array_equal(executor.gradients()["x"], [4, 6, 8])

    def test_no_other_engine_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def forbidden(*_: Any, **__: Any) -> Any:
            raise AssertionError("another engine runs")

        monkeypatch.setattr(onnx.reference.ReferenceEvaluator, "run", forbidden)
        monkeypatch.setattr("deep5.frameworks.reference.emit.compile_network", forbidden)
        monkeypatch.setattr("deep5.frameworks.reference.executor.compile_network", forbidden)
        network = classifier(dropout=0.3, normalised=True)
        with pytest.raises(NetworkError, match="another engine runs"):
            d5.framework("reference").executor(network).inference(feed(network))
        step = self.executor(network).train_step(d5.Adam())
        for index in range(3):
            assert np.isfinite(step(feed(network), StepInfo(step=index, batch_size=6))["loss"])

    def test_frozen_parameters_have_no_gradient(self) -> None:
        network = classifier()
        executor = self.executor(network)
        step = executor.train_step(d5.SGD(), groups=[ParameterGroup(lambda name: name.startswith("fc"), frozen=True)])
        step(feed(network), StepInfo(batch_size=6))
        assert list(executor.gradients()) == ["conv"]
        everything = [ParameterGroup(lambda name: True, frozen=True)]
        with pytest.raises(Deep5Error, match="nothing to train by SGD: got 3 parameters, all of them frozen"):
            executor.train_step(d5.SGD(), groups=everything)

    def test_a_call_that_fails_leaves_no_gradients_and_the_parameters(self) -> None:
        network = classifier(normalised=True)
        executor = self.executor(network)
        executor.inference_and_backprop(feed(network))
        before = executor.state_dict()

        def fails(name: str, value: Any) -> None:
            raise KeyError(name)

        for on_gradient, error in ((fails, KeyError), (None, UnknownName)):
            executor.inference_and_backprop(feed(network))
            executor.load_state_dict(before)
            with pytest.raises(error):
                executor.inference_and_backprop(
                    feed(network), "loss" if on_gradient else "lost", on_gradient=on_gradient
                )
            with pytest.raises(Unsupported, match="there are no gradients; remedy: "):
                executor.gradients()
            for name, value in executor.state_dict().items():
                np.testing.assert_array_equal(value, before[name])
        step = executor.train_step(d5.AcceleGrad(lr=0.1), modifier=lambda name, param, grad: fails(name, grad))
        for _ in range(2):  # the gradient's point differs from the parameter: it must not remain there
            with pytest.raises(KeyError):
                step(feed(network), StepInfo(batch_size=6))
            for name in network.parameter_specs:
                np.testing.assert_array_equal(executor._values[name], before[name])

    def test_misshapen_inputs_are_refused(self) -> None:
        network = lenet()
        executor = self.executor(network)
        right = feed(network, classes=10)
        wrong: list[dict[str, Any]] = [
            {"input": right["input"]},
            {**right, "label": right["label"][:-1]},
            {**right, "label": right["label"].astype(np.int32)},
            {**right, "input": right["input"][..., 1:]},
            {**right, "input": right["input"].astype(np.float64)},
            {**right, "input": "no array"},
            {**right, "more": right["label"]},
        ]
        for inputs in wrong:
            with pytest.raises(ShapeError):
                executor.inference(inputs)
            with pytest.raises(ShapeError):
                executor.inference_and_backprop(inputs)
        for inputs in (right, {name: value[::-1] for name, value in right.items()}):
            executor.inference_and_backprop(inputs)

    def test_what_cannot_run_is_refused_by_name(self) -> None:
        framework = d5.framework(self.name)
        build = NetworkBuilder("odd", dtype="float64")
        x = build.input("x", ("N", 2, 4, 4))
        y = build.op("Conv", x, build.parameter("w", (3, 2, 3, 3)))
        network = build.network({"y": build.op("GlobalAveragePool", y)})
        with pytest.raises(Unsupported, match=r"(?s)Conv_1 \(Conv\): .*float32.*GlobalAveragePool_1 \(Global"):
            framework.executor(network)
        known = network.model.graph.inputs[0]
        for node in (ir.node("Nonesuch", [known]), ir.node("Relu", [known], domain="com.example.none")):
            answer = framework.supports(node)
            assert not answer
            assert answer.reason
        assert framework.unsupported(lenet().nodes) == []
        with pytest.raises(Unsupported, match=r"cuda:0.*allowed: cpu"):
            framework.executor(lenet(), device="cuda")

    def test_dtype_of_unknown_inputs_is_asked_for(self) -> None:
        answer = d5.framework(self.name).supports(ir.node("Relu", [ir.Value(name="x")]))
        assert answer == (False, "an input of Relu has no known element type; remedy: infer shapes first")

    def test_a_subgraph_reads_values_from_outside(self) -> None:
        branches = {}
        x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 2]))
        for name, op_type in (("then_branch", "Relu"), ("else_branch", "Neg")):
            node = ir.node(op_type, [x])
            node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = name, x.type, x.shape
            branches[name] = ir.Graph([], node.outputs, nodes=[node], name=name)
        flag = ir.Value(name="flag", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
        choice = ir.node("If", [flag], branches)
        choice.outputs[0].name, choice.outputs[0].type, choice.outputs[0].shape = "y", x.type, x.shape
        graph = ir.Graph([x, flag], choice.outputs, nodes=[choice], name="choice", opset_imports={"": 20})
        executor = self.executor(d5.Network(ir.Model(graph, ir_version=10)))
        value = np.array([[-1, 2]], np.float32)
        for flagged, want in ((True, [[0, 2]]), (False, [[1, -2]])):
            np.testing.assert_array_equal(executor.inference({"x": value, "flag": np.array(flagged)})["y"], want)

    def test_outputs_whose_shape_nobody_knows_before(self) -> None:
        build = NetworkBuilder("where")
        x = build.input("x", ("N", 3))
        network = build.network({"places": build.op("NonZero", x), "double": build.op("Add", x, x)})
        executor, results = self.executor(network), []
        values = [np.array(rows, np.float32) for rows in ([[1, 0, 2], [0, 3, 4]], [[0, 0, 5]], [[1, 0, 2], [0, 3, 4]])]
        for value in values:
            results.append(executor.inference({"x": value}))
        for value, result in zip(values, results, strict=True):
            np.testing.assert_array_equal(result["places"], np.nonzero(value))
            np.testing.assert_array_equal(result["double"], 2 * value)

    def test_threads_are_set_and_read_back(self) -> None:
        framework: Any = d5.framework(self.name)
        executor = self.executor(mlp(features=4, hidden=3, classes=2))
        for threads in (2, 1):
            framework.set_threads(threads)
            assert executor.settings()["threads"] == threads
        assert d5.framework(self.name).threads == 1  # of the process, not of the object  # type: ignore[attr-defined]
        for wrong in (0, True, 1.0):
            with pytest.raises(UsageError, match="threads; allowed: an integer from 1 to"):
                framework.set_threads(wrong)

    def test_settings_are_told(self) -> None:
        framework, executor = d5.framework(self.name), self.executor(lenet())
        expected = {"framework": self.name, "version": framework.version(), "device": "cpu", "dtype": "float32"}
        assert executor.settings().items() >= {**expected, "tf32": False, "deterministic": True, "threads": 1}.items()

    def test_the_processor_works_no_longer_than_the_clock_runs(self) -> None:
        """At one thread; a second one waiting in a loop would show as 2. 15 % allow for the clock and the system."""
        network = mlp()
        executor, inputs = self.executor(network), feed(network, 64)
        executor.inference_and_backprop(inputs)
        wall, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() < wall + 0.3:
            executor.inference_and_backprop(inputs)
        assert time.process_time() - cpu <= 1.15 * (time.perf_counter() - wall)

    def test_a_failure_in_the_engine_is_told_in_our_words_and_leaves_it_working(self) -> None:
        network = lenet()
        executor, right = self.executor(network), feed(network, 4, classes=10)
        want = executor.inference(right)
        empty = feed(network, 0)  # no samples have no mean
        with pytest.raises(NetworkError, match=f"{self.name} failed in the network 'lenet': "):
            executor.inference(empty)
        close(executor.inference(right), want)
        with pytest.raises(ShapeError, match="nothing to train on"):
            executor.inference_and_backprop(empty)
        close(executor.inference_and_backprop(right), want)

    def test_a_label_that_is_no_class_is_refused(self) -> None:
        network = lenet()
        executor, right = self.executor(network), feed(network, 4, classes=10)
        for label in (10, -1, 2**31, -(2**62)):
            for call in (executor.inference, executor.inference_and_backprop):
                with pytest.raises(NetworkError, match=f"input 'label': got the label {label}; allowed: 0 to 9"):
                    call({**right, "label": np.array([1, 2, label, 3])})

    def test_a_label_that_is_to_be_ignored_is_taken(self) -> None:
        build = NetworkBuilder("ignore")
        x, label = build.input("input", ("N", 3)), build.input("label", ("N",), "int32")
        x = build.op("Gemm", x, build.parameter("w", (4, 3)), transB=1)
        network = build.network({"loss": build.op("SoftmaxCrossEntropyLoss", x, label, ignore_index=-7)})
        value = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
        executors = self.pair(network)
        for executor in executors:
            executor.inference_and_backprop({"input": value, "label": np.array([1, -7, 3], np.int32)})
        close(executors[0].gradients(), executors[1].gradients())
        with pytest.raises(NetworkError, match="got the label -1; allowed: 0 to 3, and -7 for none"):
            executors[0].inference({"input": value, "label": np.array([1, -7, -1], np.int32)})
