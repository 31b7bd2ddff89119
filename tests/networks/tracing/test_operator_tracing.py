"""Operators in Python on engines that run only ONNX: values, gradients by their own backward, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import deep5 as d5
from deep5.core.errors import OperatorError, Unsupported
from deep5.core.framework import Support
from deep5.networks import Network, NetworkBuilder
from deep5.networks.edit.builder import ones
from deep5.networks.transforms.lowering import lowered

DOMAIN = "org.example.tracing"
ENGINES = ("onnxruntime", "openvino")
RNG = np.random.default_rng(11)


class Base(d5.Operator):
    """Outputs like the inputs, no gradient: the defaults of subclasses."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs[:1]

    def forward(self, *inputs: Any) -> Any:
        return inputs[0]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return [output_grads[0] if needed else None for needed in needs]


@d5.register_operator("IPow", domain=DOMAIN)
class IPow(Base):
    def __init__(self, power: int) -> None:
        self.power = power

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] ** self.power

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (output_grads[0] * self.power * inputs[0] ** (self.power - 1),)


@d5.register_operator("Softmax", domain=DOMAIN)
class Softmax(Base):
    """Over the batch, so that a symbolic dimension is summed."""

    def forward(self, *inputs: Any) -> Any:
        xp, x = d5.array_namespace(*inputs), inputs[0]
        shifted = xp.exp(x - xp.max(x, axis=0, keepdims=True))
        return shifted / xp.sum(shifted, axis=0, keepdims=True)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp, y, g = d5.array_namespace(*inputs), outputs[0], output_grads[0]
        return (y * (g - xp.sum(y * g, axis=0, keepdims=True)),)


@d5.register_operator("Polar", domain=DOMAIN)
class Polar(Base):
    """(x, y) -> (radius, angle): two outputs, and a backward that reads them."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs

    def forward(self, *inputs: Any) -> Any:
        xp, (x, y) = d5.array_namespace(*inputs), inputs
        return xp.sqrt(x * x + y * y), xp.atan2(y, x)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, y), (radius, _), (by_radius, by_angle) = inputs, outputs, output_grads
        by_x = by_radius * x / radius - by_angle * y / (radius * radius)
        by_y = by_radius * y / radius + by_angle * x / (radius * radius)
        return by_x if needs[0] else None, by_y if needs[1] else None


@d5.register_operator("Rows", domain=DOMAIN)
class Rows(Base):
    """Each row times one of the factors, by its index; the indices are integers and have no gradient."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs[0], d5.TensorSpec(shape=inputs[2].shape, dtype="int64")

    def forward(self, *inputs: Any) -> Any:
        xp, (x, factors, numbers) = d5.array_namespace(*inputs), inputs
        return x * xp.take(factors, numbers, axis=0), numbers + 1

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        assert output_grads[1] is None
        xp, (x, factors, numbers), g = d5.array_namespace(*inputs), inputs, output_grads[0]
        hot = xp.astype(numbers[:, None] == xp.arange(factors.shape[0]), x.dtype)
        by_x = g * xp.take(factors, numbers, axis=0) if needs[0] else None
        return by_x, hot.mT @ (g * x) if needs[1] else None, None


@d5.register_operator("Norm", domain=DOMAIN)
class Norm(Base):
    """Layer normalization, with a factor per feature."""

    def __init__(self, epsilon: float = 1e-5) -> None:
        self.epsilon = epsilon

    def _normal(self, x: Any) -> tuple[Any, Any]:
        xp = d5.array_namespace(x)
        apart = x - xp.mean(x, axis=-1, keepdims=True)
        scale = 1 / xp.sqrt(xp.mean(apart * apart, axis=-1, keepdims=True) + self.epsilon)
        return apart * scale, scale

    def forward(self, *inputs: Any) -> Any:
        return inputs[1] * self._normal(inputs[0])[0]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp, (x, factor), g = d5.array_namespace(*inputs), inputs, output_grads[0]
        normal, scale = self._normal(x)
        d = g * factor
        means = xp.mean(d, axis=-1, keepdims=True) + normal * xp.mean(d * normal, axis=-1, keepdims=True)
        by_factor = xp.sum(g * normal, axis=tuple(range(x.ndim - 1)))
        return scale * (d - means) if needs[0] else None, by_factor if needs[1] else None


@d5.register_operator("Flat", domain=DOMAIN)
class Flat(Base):
    """(N, C, W) -> (N, C * W); its gradient goes through a shape that contains the batch."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        n, *rest = inputs[0].shape
        return (d5.TensorSpec(shape=(n, int(np.prod(rest))), dtype=inputs[0].dtype),)

    def forward(self, *inputs: Any) -> Any:
        xp, x = d5.array_namespace(*inputs), inputs[0]
        last = xp.concat([x, x])[-x.shape[0] :]  # x itself
        return xp.reshape(last, (x.shape[0], -1)) * 2

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp = d5.array_namespace(*inputs)
        return (xp.reshape(output_grads[0] * 2, inputs[0].shape),)


@d5.register_operator("Step", domain=DOMAIN)
class Step(Base):
    """Rounds; its backward passes on three times its gradient, which no derivative of rounding does."""

    def forward(self, *inputs: Any) -> Any:
        return d5.array_namespace(*inputs).round(inputs[0])

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (3 * output_grads[0],)


@d5.register_operator("Beside", domain=DOMAIN)
class Beside(Base):
    """(N, W), (K,) -> (N,), (K, W) and (K + N, W): sums of rows, the indexed rows, and all rows below them."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        x, numbers = inputs
        (n, width), (k,) = x.shape, numbers.shape
        shapes = (n,), (k, width), (k + n, width)  # type: ignore[operator]
        return tuple(d5.TensorSpec(shape=shape, dtype=x.dtype) for shape in shapes)

    def forward(self, *inputs: Any) -> Any:
        xp, (x, numbers) = d5.array_namespace(*inputs), inputs
        taken = xp.take(x, numbers, axis=0)
        return xp.sum(x, axis=1), taken, xp.concat([taken, x], axis=0)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp, (x, numbers), (by_sums, by_taken, by_both) = d5.array_namespace(*inputs), inputs, output_grads
        n, k = x.shape[0], numbers.shape[0]
        hot = xp.astype(numbers[:, None] == xp.arange(n, dtype=numbers.dtype), x.dtype)
        return hot.mT @ (by_taken + by_both[:k, :]) + by_both[k:, :] + by_sums[:, None], None


Layer = Callable[[NetworkBuilder, ir.Value], ir.Value]


def rows(build: NetworkBuilder, x: ir.Value) -> ir.Value:
    number = build.input("number", ("N",), "int64")
    y, after = build.op("Rows", x, build.parameter("factors", (3, 5)), number, outputs=2, domain=DOMAIN)
    return build.op(
        "Add", y, build.op("Unsqueeze", build.op("Cast", after, to=1), build.constant("one", np.array([1])))
    )


def polar(build: NetworkBuilder, x: ir.Value) -> ir.Value:
    radius, angle = build.op("Polar", build.op("Tanh", x), x, outputs=2, domain=DOMAIN)
    return build.op("Add", build.op("Mul", radius, x), angle)


def flat(build: NetworkBuilder, x: ir.Value) -> ir.Value:
    wide = build.op("Unsqueeze", x, build.constant("two", np.array([2])))
    return build.op("Flat", build.op("Concat", wide, wide, axis=2), domain=DOMAIN)


LAYERS: dict[str, Layer] = {
    "IPow": lambda build, x: build.op("IPow", x, power=3, domain=DOMAIN),
    "Softmax": lambda build, x: build.op("Softmax", x, domain=DOMAIN),
    "Polar": polar,
    "one output of Polar": lambda build, x: build.op("Polar", x, build.op("Exp", x), outputs=2, domain=DOMAIN)[1],
    "Rows": rows,
    "Norm": lambda build, x: build.op("Norm", x, build.parameter("scale", (5,), ones), epsilon=1e-3, domain=DOMAIN),
    "Flat": flat,
    "Step": lambda build, x: build.op("Step", build.op("Mul", x, x), domain=DOMAIN),
}


def network_with(layer: Layer, dtype: str = "float32") -> Network:
    build = NetworkBuilder("net", dtype=dtype, seed=2)
    x = build.op("Gemm", build.input("x", ("N", 4)), build.parameter("w", (5, 4)), transB=1)
    y = layer(build, x)
    return build.network({"y": y, "loss": build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)})


def feed_of(network: Network, batch: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(batch).standard_normal((batch, 4)).astype(network.inputs["x"].dtype)
    return {"x": x, **({"number": np.arange(batch) % 3} if "number" in network.inputs else {})}


def results(framework: str, network: Network, batch: int) -> dict[str, np.ndarray]:
    """Outputs, and gradients by everything that has one."""
    executor = d5.framework(framework).executor(network)
    feed = feed_of(network, batch)
    outputs = executor.inference(feed)
    made = {name: np.array(d5.to_numpy(value)) for name, value in outputs.items()}
    executor.inference_and_backprop(feed, wrt=["x", *network.parameter_specs])
    return made | {f"grad {name}": np.array(d5.to_numpy(value)) for name, value in executor.gradients().items()}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_values_and_gradients_are_those_that_the_reference_gets_by_calling_python(engine: str, layer: str) -> None:
    network = network_with(LAYERS[layer])
    for batch in (3, 7):
        want, got = results("reference", network, batch), results(engine, network, batch)
        assert got.keys() == want.keys()
        assert all(np.abs(value).max() > 0 for value in want.values())
        for name, value in want.items():
            assert got[name].dtype == value.dtype
            # A few dozen float32 operations on numbers of size one.
            np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("layer", ["IPow", "Softmax", "Norm", "Flat"])
def test_float64_stays_float64(layer: str) -> None:
    network = network_with(LAYERS[layer], "float64")
    want, got = results("reference", network, 4), results("onnxruntime", network, 4)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-12, atol=1e-14)  # the same in float64


def test_the_gradient_is_the_operators_own() -> None:
    """Not that of the ONNX operators that its forward becomes: for rounding, that is zero."""
    build = NetworkBuilder("net")
    y = build.op("Step", build.input("x", ("N",)), domain=DOMAIN)
    network = build.network({"loss": build.op("ReduceSum", y, keepdims=0)})
    for engine in ENGINES:
        executor = d5.framework(engine).executor(network)
        executor.inference_and_backprop({"x": np.array([0.4, 1.6], np.float32)}, wrt=["x"])
        np.testing.assert_array_equal(executor.gradients()["x"], [3, 3])


def test_the_engine_runs_it_and_python_does_not() -> None:
    calls: list[str] = []

    @d5.register_operator("Counted", domain=DOMAIN)
    class Counted(Base):
        def forward(self, *inputs: Any) -> Any:
            calls.append("forward")
            return inputs[0] * 0.5 + np.float32(0.25)

    network = network_with(lambda build, x: build.op("Counted", x, domain=DOMAIN))
    low = lowered(network, lambda node: Support(not node.domain, "ONNX alone"))
    assert all(not node.domain for node in low.nodes)
    assert (low.inputs, low.outputs, low.parameter_specs) == (network.inputs, network.outputs, network.parameter_specs)
    for engine in ENGINES:
        executor = d5.framework(engine).executor(network)
        executor.inference_and_backprop(feed_of(network, 3))
        calls.clear()
        for _ in range(3):
            executor.inference(feed_of(network, 3))
            executor.inference_and_backprop(feed_of(network, 3))
        assert calls == []


def test_names_of_a_graph_stay_apart_from_those_of_an_expansion() -> None:
    def twice(build: NetworkBuilder, x: ir.Value) -> ir.Value:
        return build.op("IPow", build.op("IPow", x, power=2, domain=DOMAIN), power=2, domain=DOMAIN)

    low = lowered(network_with(twice), lambda node: Support(not node.domain, "ONNX alone"))
    names = [value.name for node in low.nodes for value in node.outputs]
    assert len(set(names)) == len(names)
    assert "IPow_1_output" in names
    assert all(value.shape is not None and value.dtype is not None for node in low.nodes for value in node.outputs)


def test_a_wrong_expansion_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward without one term has gradients other than the reference's for the right one."""
    network = network_with(LAYERS["Softmax"])
    want = results("reference", network, 3)
    monkeypatch.setattr(Softmax, "backward", lambda self, g, inputs, outputs, needs: (outputs[0] * g[0],))
    got = results("onnxruntime", network, 3)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5)  # float32
    assert np.abs(got["grad x"] - want["grad x"]).max() > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("extents", [("N", "K"), ("K", "N"), ("N", "N")])
def test_gradients_where_several_extents_are_symbolic(engine: str, extents: tuple[str, str]) -> None:
    """It is unknown which is larger, so they cannot be sorted."""
    build = NetworkBuilder("extents", seed=3)
    x, numbers = build.input("x", (extents[0], 3)), build.input("numbers", (extents[1],), "int64")
    made = build.op("Beside", build.op("Mul", x, build.parameter("w", (3,), ones)), numbers, domain=DOMAIN)
    squares = (build.op("ReduceSum", build.op("Mul", value, value), keepdims=0) for value in made)
    network = build.network({"both": made[-1], "loss": build.op("Sum", *squares)})
    for rows, count in ((4, 4),) if extents[0] == extents[1] else ((4, 6), (5, 2)):
        feed = {"x": RNG.standard_normal((rows, 3)).astype(np.float32), "numbers": np.arange(count) % 3}
        found = {}
        for framework in ("reference", engine):
            executor = d5.framework(framework).executor(network)
            outputs = executor.inference_and_backprop(feed, wrt=["x", "w"])
            found[framework] = {**outputs, **executor.gradients()}
        for name, value in found["reference"].items():
            assert np.abs(value).max() > 0
            # Sums of a few dozen products of float32 numbers of size one.
            np.testing.assert_allclose(found[engine][name], value, rtol=2e-5, atol=1e-5, err_msg=name)


# Operators that return their input, or an array that they hold


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_and_constants_may_be_outputs(engine: str) -> None:
    @d5.register_operator("Plain", domain=DOMAIN)
    class Plain(Base):
        table = np.array([1.0, 2.0], np.float32)

        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return inputs[0], inputs[0], d5.TensorSpec(shape=(2,)), d5.TensorSpec(shape=(2,))

        def forward(self, *inputs: Any) -> Any:
            table = d5.array_namespace(*inputs).asarray(self.table)
            return inputs[0], inputs[0], table, table

    build = NetworkBuilder("plain")
    made = build.op("Plain", build.input("x", ("N", 2)), outputs=4, domain=DOMAIN)
    network = build.network({f"y{number}": value for number, value in enumerate(made)})
    x = RNG.standard_normal((3, 2)).astype(np.float32)
    executor = d5.framework(engine).executor(network)
    assert list(network.parameter_specs) == []
    got = executor.inference({"x": x})
    for name, value in zip(got, (x, x, Plain.table, Plain.table), strict=True):
        np.testing.assert_array_equal(got[name], value)


# Operators that cannot be written this way or break the contract


def operator(name: str, forward: Callable[..., Any], specs: Callable[..., Any] | None = None) -> Layer:
    """A layer of a new operator."""

    class Made(Base):
        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return super().specs(*inputs) if specs is None else specs(*inputs)

        def forward(self, *inputs: Any) -> Any:
            return forward(d5.array_namespace(*inputs), inputs[0])

    Made.__qualname__ = Made.__name__ = name
    d5.register_operator(name, domain=DOMAIN)(Made)
    return lambda build, x: build.op(name, x, domain=DOMAIN)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "Branch": (
        lambda xp, x: x if xp.sum(x) > 0 else -x,
        "depends on the values of an array.*xp.where, or write it in C",
    ),
    "Batch": (lambda xp, x: x if x.shape[0] == 1 else -x, "decides by the symbolic dimension N and 1; .*remedy: fix"),
    "Loop": (lambda xp, x: sum(x[i] for i in range(x.shape[0])), "decides by the symbolic dimension N"),
    "Missing": (lambda xp, x: xp.sort(x), "AttributeError while it was traced: .*has no 'sort'; allowed: abs"),
    "Numpy": (lambda xp, x: np.exp(x), "TypeError while it was traced"),
    "Method": (
        lambda xp, x: x / x.sum(),
        r"no attribute 'sum'; allowed: T, .*; remedy: xp\.sum\(x\) instead of x\.sum\(\), with xp = d5\.array_names",
    ),
    "Alias": (lambda xp, x: x.flatten(), r"no attribute 'flatten'; .*remedy: xp\.reshape\(x, …\) instead of x\.flatt"),
    "Unheard": (lambda xp, x: x.numpy(), r"no attribute 'numpy'; .*remedy: the functions of d5\.array_namespace\(x\)"),
    "Indices": (
        lambda xp, x: xp.take(x, x[:, 0], axis=0),
        r"take with indices of float32\[N\]; allowed: integers; remedy: xp\.astype",
    ),
    "Input": (
        lambda xp, x: xp.where(x, x, 0.0),
        r"where with a condition of float32\[N, 5\] \('Gemm_1_output'\); allowed: truth values",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_is_refused_with_its_reason(name: str) -> None:
    forward, reason = REFUSED[name]
    network = network_with(operator(name, forward))
    with pytest.raises(
        Unsupported, match=rf"(?s)ONNX operators:\n  {name}_1 \({DOMAIN}.{name}\): .*; nor in ONNX: .*{reason}"
    ):
        d5.framework("onnxruntime").executor(network)


BROKEN: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None, str]] = {
    "TwoOutputs": (lambda xp, x: (x, x), None, r"TwoOutputs.forward returned 2 outputs; allowed: 1"),
    "NoArray": (lambda xp, x: 1.0, None, r"NoArray.forward returned 1.0 as output 0; allowed: an array"),
    "OtherType": (lambda xp, x: x > 0, None, "OtherType.forward: output 0: got dtype bool, expected float32"),
    "OtherShape": (lambda xp, x: x[:, 1:], None, r"OtherShape.forward: output 0: got shape \(12, 4\), expected"),
    "OtherBatch": (
        lambda xp, x: xp.concat([x, x], axis=0),
        lambda x: (d5.TensorSpec(shape=(x.shape[0] * 3, 5)),),
        r"OtherBatch.forward: output 0: got shape \(24, 5\), expected float32\[36, 5\], .* \(for N=12\)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_contract_is_an_error(name: str) -> None:
    forward, specs, message = BROKEN[name]
    network = network_with(operator(name, forward, specs))
    with pytest.raises(OperatorError, match=message):
        d5.framework("onnxruntime").executor(network)


@pytest.mark.parametrize("wrong", ["count", "shape", "type"])
def test_a_backward_that_breaks_the_contract_is_an_error(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def backward(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp, g = d5.array_namespace(*inputs), output_grads[0]
        return {"count": (), "shape": (g[:, :2],), "type": (xp.astype(g, xp.float64),)}[wrong]

    network = network_with(LAYERS["Softmax"])
    monkeypatch.setattr(Softmax, "backward", backward)
    executor = d5.framework("onnxruntime").executor(network)
    message = {
        "count": "Softmax.backward returned 0 gradients; allowed: one per input, 1",
        "shape": r"Softmax.backward: gradient by input 0: got float32\[12, 2\], expected float32\[12, 5\] \(for N=12\)",
        "type": r"Softmax.backward: gradient by input 0: got float64\[12, 5\], expected float32\[12, 5\]",
    }[wrong]
    with pytest.raises(OperatorError, match=message):
        executor.inference_and_backprop(feed_of(network, 3))


def test_shapes_that_follow_from_the_batch_are_held_against_the_specs() -> None:
    pairs = operator(
        "Pairs",
        lambda xp, x: xp.concat([x[1:] - x[:-1], x[:1] - x[1:]], axis=0),
        lambda x: (d5.TensorSpec(shape=((x.shape[0] - 1) * 2, x.shape[1])),),
    )
    network = network_with(pairs)
    x = feed_of(network, 5)
    want = d5.framework("reference").executor(network).inference(x)["y"]
    for engine in ENGINES:
        # Differences of sums of four products.
        np.testing.assert_allclose(d5.framework(engine).executor(network).inference(x)["y"], want, rtol=1e-5, atol=1e-6)


def test_a_batch_that_nothing_names() -> None:
    """After a reshape to -1 a dimension has no name; the gradient still has the output's dimension."""
    build = NetworkBuilder("open")
    x = build.op("Reshape", build.input("x", ("N", 3, 4)), build.constant("to", np.array([-1, 2])))
    y = build.op("Softmax", build.op("Mul", x, build.parameter("w", (1, 2))), domain=DOMAIN)
    network = build.network({"y": y, "loss": build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)})
    feed = {"x": RNG.standard_normal((2, 3, 4)).astype(np.float32)}
    found = {}
    for framework in ("reference", *ENGINES):
        executor = d5.framework(framework).executor(network)
        executor.inference_and_backprop(feed, wrt=["x", "w"])
        found[framework] = {name: np.array(value) for name, value in executor.gradients().items()}
    for engine in ENGINES:
        for name, value in found["reference"].items():
            np.testing.assert_allclose(found[engine][name], value, rtol=2e-5, atol=1e-7)  # float32


def test_an_operator_alone_runs_on_engines_too() -> None:
    operator, x = Polar(), [RNG.standard_normal(5).astype(np.float32) for _ in range(2)]
    for engine in ENGINES:
        executor = d5.framework(engine).operator_executor(operator)
        outputs, gradients = executor.inference_and_backprop(executor.arrays(*x), [np.ones(5, np.float32)] * 2)
        want = operator.forward(*x)
        for got, value in zip(outputs, want, strict=True):
            np.testing.assert_allclose(d5.to_numpy(got), value, rtol=1e-6)  # some units of float32
        by_hand = operator.backward([np.ones(5, np.float32)] * 2, x, want, (True, True))
        for got, value in zip(gradients, by_hand, strict=True):
            np.testing.assert_allclose(d5.to_numpy(got), value, rtol=1e-5, atol=1e-6)  # differences of such values
