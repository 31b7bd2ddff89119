"""Operators on NumPy, ONNX Runtime and OpenVINO, beyond the suite of all back-ends: kernels in sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from backend_operators import DOMAIN, CppPow, PyPow, draw, powers
from deep5.core.errors import OperatorError, ShapeError, Unsupported
from deep5.networks.compiled import DOMAIN as COMPILED
from deep5.networks.edit.builder import ones
from deep5.networks.engine import engine_model
from deep5.networks.onnx_operator import ONNXOperator
from deep5.networks.single import Single
from deep5.operators.registry import registered_operators

ENGINES = ("reference", "onnxruntime", "openvino")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = {name: d5.framework(name).threads for name in ENGINES[1:]}  # type: ignore[attr-defined]
    for name in before:
        d5.framework(name).set_threads(1)
    yield
    for name, threads in before.items():
        d5.framework(name).set_threads(threads)


class Alias(PyPow):
    """Returns its input, or a view of it."""

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] if self.power == 1 else inputs[0][...]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (output_grads[0],)


class Same(PyPow):
    """Returns the same array again and again."""

    def forward(self, *inputs: Any) -> Any:
        if not hasattr(self, "kept"):
            self.kept = np.ones(inputs[0].shape, inputs[0].dtype)
        return self.kept


for made in (Alias, Same):
    d5.register_operator(made.__name__, domain=DOMAIN)(made)


def executor(name: str, operator: d5.Operator) -> Any:
    return d5.framework(name).operator_executor(operator)


def test_openvino_holds_integers_of_64_bits_in_32() -> None:
    """2^31 does not fit, and is reported."""
    with pytest.raises(OperatorError, match="CppPow failed: output 0 holds 2147483648; allowed: 32-bit integers"):
        executor("openvino", CppPow(31)).inference(np.array([1, 2]))
    for dtype in ("float16", "int16"):
        with pytest.raises(Unsupported, match="another element type; allowed: bool, float32"):
            executor("openvino", CppPow(2)).inference(np.ones(2, dtype))


def test_arrays_that_engines_do_not_take() -> None:
    for name in ENGINES:
        made = executor(name, CppPow(2))
        with pytest.raises(ShapeError, match="byte order"):
            made.inference(draw(3).astype(">f4"))
        raw = np.zeros(4 * 4 + 1, np.uint8)[1:].view(np.float32)
        raw[...] = [1, 2, 3, 4]
        np.testing.assert_array_equal(made.inference(raw)[0], [1, 4, 9, 16])  # not aligned


@pytest.mark.parametrize("name", ENGINES)
def test_what_the_engine_runs_is_no_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the reference calls the operator's own methods; elsewhere the code has been translated to ONNX."""
    operator, x, calls = PyPow(2), draw(3), []
    made = executor(name, operator)
    made.inference_and_backprop((x,), (x,))
    made.inference(x)
    right = operator.forward
    monkeypatch.setattr(operator, "forward", lambda *inputs: (calls.append(1), right(*inputs))[1])
    if name == "reference":
        made = executor(name, operator)
    made.inference(x)
    assert len(calls) == (name == "reference")


NUMPY = d5.framework("reference")


@pytest.mark.parametrize("kind", ["Alias", "Same"])
def test_memory_that_an_operator_shares_is_not_written_to(kind: str) -> None:
    """Otherwise Relu and Add would write to their inputs' memory, which the operator returned twice or others read."""
    for power in (1, 2):
        build = d5.NetworkBuilder("shared")
        x = build.input("x", ("N",))
        fresh = build.op("Add", x, x)
        alias = build.op(kind, fresh, domain=DOMAIN, power=power)
        negative = build.op("Neg", alias)
        changed = build.op("Exp", build.op("Neg", fresh))
        hidden = build.op("Neg", build.op(kind, build.op("Mul", x, x), domain=DOMAIN, power=power))
        made = NUMPY.executor(
            build.network(
                {"alias": alias, "twice": build.op("Identity", alias), "n": negative, "c": changed, "h": hidden}
            )
        )
        value = np.array([1.0, -2.0], np.float32)
        want = np.ones(2) if kind == "Same" else 2 * value
        for _ in range(2):
            found = made.inference({"x": value})
            np.testing.assert_array_equal(found["alias"], want)
            np.testing.assert_array_equal(found["twice"], want)
            np.testing.assert_array_equal(found["n"], -want)
            np.testing.assert_array_equal(found["h"], -np.ones(2) if kind == "Same" else -(value**2))
            np.testing.assert_allclose(found["c"], np.exp(-2 * value), rtol=1e-6)
            for one in found.values():
                one[...] = 77  # the caller owns the returned arrays
        np.testing.assert_array_equal(value, [1, -2])


def test_an_operator_in_a_network_that_writes_to_its_input_is_told() -> None:
    build = d5.NetworkBuilder("written")
    y = build.op("InPlace", build.op("Add", build.input("x", ("N",)), build.parameter("w", (1,), ones)), domain=DOMAIN)
    made = NUMPY.executor(build.network({"loss": build.op("ReduceSum", y, keepdims=0)}))
    with pytest.raises(OperatorError, match=r"InPlace\.forward raised ValueError"):
        made.inference({"x": np.ones(2, np.float32)})


def test_onnx_runtime_runs_a_custom_operator_of_its_own(tmp_path: Path) -> None:
    """The session's model has the node in deep5's domain, and ONNX Runtime's own profile shows that it ran there."""
    import onnxruntime

    from deep5.frameworks.onnxruntime.custom import register_shim, with_kernels

    suited, kernels = with_kernels(powers("CppPow"), d5.CPUDevice())
    model = onnx.ModelProto.FromString(engine_model(suited))
    (node,) = [node for node in model.graph.node if node.domain == COMPILED]
    assert node.op_type == "deep5_1_to_1"
    assert [attribute.i for attribute in node.attribute] == [kernels["CppPow_1"].pointer]
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    register_shim(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"x": np.ones((2, 4), "float32"), "w": np.ones((4, 3), "float32")}
    np.testing.assert_array_equal(session.run(["y"], feed)[0], np.full((2, 3), 64))
    events = json.loads(Path(session.end_profiling()).read_text())
    assert any(event["name"] == "CppPow_1_kernel_time" for event in events)
    # Without the library the node is unknown: it is not an operator of ONNX Runtime's.
    with pytest.raises(Exception, match=COMPILED):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", ENGINES)
def test_an_operator_of_a_parameter_and_of_a_number(name: str) -> None:
    """A parameter that nothing writes to may be a constant of the session, and changes all the same when it is set."""
    build = d5.NetworkBuilder("numbers")
    x, w = build.input("x", ("N", 2)), build.parameter("w", (2, 2))
    y = build.op("MatMul", x, build.op("CppPow", w, domain=DOMAIN, power=3))
    mean = build.op("CppPow", build.op("ReduceMean", y, keepdims=0), domain=DOMAIN, power=2)
    made = d5.framework(name).executor(build.network({"y": y, "loss": mean}))
    value = np.ones((1, 2), "float32")
    for factor in (1, 2, 3):
        weight = factor * np.array([[1, 2], [3, 4]], "float32")
        made.load_state_dict({"w": weight})
        for _ in range(2):
            found = made.inference({"x": value})
            want = (weight**3).sum(0, keepdims=True)
            np.testing.assert_allclose(found["y"], want, rtol=1e-6)
            np.testing.assert_allclose(found["loss"], want.mean() ** 2, rtol=1e-6)
    made.inference_and_backprop({"x": value})
    # d/dw of the square of the mean of w^3, summed over rows.
    np.testing.assert_allclose(made.gradients()["w"], 3 * weight**2 * want.mean(), rtol=2e-6)


def test_onnx_runtime_refuses_compiled_operators_on_other_devices() -> None:
    from deep5.frameworks.onnxruntime.custom import with_kernels

    with pytest.raises(Unsupported, match="only on the host; got the device cuda:0 and CppPow; allowed: cpu"):
        with_kernels(powers("CppPow"), d5.GPUDevice())


def test_one_executor_from_many_threads_reports_right() -> None:
    operator = CppPow(2)
    made = executor("onnxruntime", operator)
    made.inference(np.ones(4, np.float32))
    operator.report()
    made.inference(np.ones(4, np.float32))
    assert operator.report() == {"elements": 4.0}  # it ran exactly once


@pytest.mark.parametrize("name", ENGINES[1:])
def test_programs_that_are_thrown_away_take_their_kernels_along(name: str) -> None:
    import gc
    import weakref

    made = d5.framework(name).executor(powers("CppPow"))
    made.inference({"x": np.ones((1, 4), "float32")})
    (kernel,) = made._programs[("forward", False)].run._kernels.values()
    seen = weakref.ref(kernel)
    del kernel
    made.discard_programs()
    gc.collect()
    assert seen() is None
    np.testing.assert_allclose(made.inference({"x": np.ones((2, 4), "float32")})["y"].shape, (2, 3))


def test_a_network_of_one_given_operator() -> None:
    """The node refers to the very object, and disappears with its user."""
    operator, before = PyPow(5), dict(registered_operators())
    single = Single(operator)
    (node,) = single.network([d5.TensorSpec(shape=(2,))]).nodes
    from deep5.networks.custom import operator_of

    assert operator_of(node) is operator
    assert len(registered_operators()) == len(before) + 1
    del single
    assert registered_operators() == before


@pytest.mark.parametrize("title", ["my op 3x3", "3x3", "größe", "a.b/c"])
@pytest.mark.parametrize("name", ENGINES)
def test_an_operator_may_be_called_anything(name: str, title: str) -> None:
    operator, x = PyPow(2), draw(3)
    operator.title = title
    np.testing.assert_array_equal(executor(name, operator).inference(x)[0], executor(name, PyPow(2)).inference(x)[0])


def test_discarding_programs_keeps_results() -> None:
    for name in ENGINES[1:]:
        made, x = executor(name, CppPow(2)), draw(3)
        first = made.inference(x)[0]
        d5.framework(name).set_threads(2)
        np.testing.assert_array_equal(made.inference(x)[0], first)
        assert made.settings()["threads"] == 2


def test_a_call_on_numpy_converts_nothing_and_a_session_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator gets the caller's own array, and a second call of an executor reuses its session and its binding."""
    x, seen = np.ones(1, np.float32), []

    class Looks(PyPow):
        def forward(self, *inputs: Any) -> Any:
            seen.append(inputs[0])
            return super().forward(*inputs)

    NUMPY.operator(Looks(2))(x)
    assert np.shares_memory(seen[0], x)
    for operator, inputs in ((CppPow(2), (x,)), (ONNXOperator("Mul"), (x, x))):
        made = executor("onnxruntime", operator)
        made.inference(*inputs)
        program = made._last
        made.inference(*inputs)
        assert made._last is program
