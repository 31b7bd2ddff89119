"""Memory of NumPy, ONNX Runtime and OpenVINO: outputs that callers hold, inputs that are read without a copy."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from backend_operators import CppPow
from deep5.core.errors import ShapeError
from deep5.networks.onnx_operator import ONNXOperator
from processors import installed

RNG = np.random.default_rng(11)
ENGINES = ("reference", "onnxruntime", "openvino")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = {name: d5.framework(name).threads for name in ENGINES[1:] if installed(name)}  # type: ignore[attr-defined]
    for name in before:
        d5.framework(name).set_threads(1)
    yield
    for name, threads in before.items():
        d5.framework(name).set_threads(threads)


def draw(*shape: int) -> np.ndarray:
    """Different numbers each time."""
    return (RNG.standard_normal(shape) + 2).astype("float32")


def executor(name: str, operator: d5.Operator) -> Any:
    return d5.framework(name).operator_executor(operator)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("rows", [3, 4000])
def test_outputs_that_are_held_stay_as_they_are(name: str, rows: int) -> None:
    """Any number of them, through views and zero-copy access; a caller's changes affect only that caller's array."""
    made, x = executor(name, CppPow(2)), draw(rows, 50)
    held = [made.inference(x + number)[0] for number in range(5)]
    wanted = [value.copy() for value in held]
    for number, value in enumerate(wanted):
        np.testing.assert_allclose(value, (x + number) ** 2, rtol=1e-6)
    torch = pytest.importorskip("torch")
    others = [torch.from_numpy(held[0])[1:], memoryview(held[1]), held[2].T[::-1], np.from_dlpack(held[3])]
    held[4].shape = (50, rows)
    held[4][...] = wanted[4] = np.float32(7)
    last = held[4]
    del held, value
    for number in range(5):
        again = made.inference(x - number)[0]
        assert again.shape == (rows, 50)
        assert again.flags.writeable
        assert again.flags.c_contiguous
        np.testing.assert_allclose(again, (x - number) ** 2, rtol=1e-6)
        again[...] = 0
        np.testing.assert_array_equal(others[0], wanted[0][1:])
        np.testing.assert_array_equal(others[1], wanted[1])
        np.testing.assert_array_equal(others[2], wanted[2].T[::-1])
        np.testing.assert_array_equal(others[3], wanted[3])
        assert (last == 7).all()


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_memory_of_outputs_that_nobody_holds_is_written_to_again(name: str) -> None:
    made, x = executor(name, CppPow(2)), draw(4000, 50)
    places = {made.inference(x)[0].ctypes.data for _ in range(6)}
    assert len(places) == 1
    for _ in range(6):
        y = made.inference(x)[0]  # the previous one is held while this one is computed
        places.add(y.ctypes.data)
    assert len(places) == 2
    kept = [made.inference(x)[0] for _ in range(6)]
    assert len({value.ctypes.data for value in kept}) == 6


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_inputs_are_read_where_they_lie_however_they_come(name: str) -> None:
    """The same array again with other content, others in turn, other strides, read-only ones, outputs as inputs."""
    for rows in (3, 4000):  # ONNX Runtime copies small inputs that are not passed twice in a row
        made, one, other = executor(name, CppPow(2)), draw(rows, 50), draw(rows, 50)
        strided, fixed = draw(50, rows).T, draw(rows, 50)
        fixed.flags.writeable = False
        for x in (one, one, one, other, one, other, other, strided, strided, one, fixed, fixed, one, one):
            if x.flags.writeable:
                x[...] = draw(rows, 50)
            np.testing.assert_allclose(made.inference(x)[0], x * x, rtol=1e-6)
        right = y = one / 8
        for _ in range(3):
            y, right = made.inference(y)[0], right * right
            np.testing.assert_allclose(y, right, rtol=1e-5)
        square = draw(60, 60)
        made.inference(square)
        made.inference(square)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy recommends views instead
            square.strides = square.strides[::-1]
        np.testing.assert_allclose(made.inference(square)[0], square * square, rtol=1e-6)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("order", list(itertools.permutations(["unknown", "small", "large"])))
def test_outputs_of_all_sizes_come_in_the_order_of_the_network(name: str, order: tuple[str, ...]) -> None:
    """Small ones are copied, large ones lent; those of unknown shape use the engine's memory."""
    for rows in (200, "rows"):
        build = d5.NetworkBuilder("mixed")
        x = build.input("x", (rows, 40), "float32")
        made = {"unknown": build.op("NonZero", x), "small": build.op("ReduceSum", x, keepdims=0)}
        made["large"] = build.op("Add", x, x)
        network = build.network({key: made[key] for key in order})
        executor = d5.framework(name).executor(network)
        held = []
        for count in (200, 200, 200, 200) if rows == 200 else (200, 300, 200, 1):
            values = draw(count, 40)
            held.append((values, executor.inference({"x": values})))
        for values, found in held:
            assert tuple(found) == order
            np.testing.assert_array_equal(found["unknown"], np.nonzero(values))
            np.testing.assert_array_equal(found["large"], values + values)
            # Eight thousand terms of float32.
            np.testing.assert_allclose(found["small"], values.sum(dtype=np.float64), atol=1e-2)


@pytest.mark.parametrize("name", ENGINES)
def test_a_network_reads_an_array_whose_shape_was_changed(name: str) -> None:
    build = d5.NetworkBuilder("double")
    x = build.input("x", ("B", "T"), "float32")
    executor = d5.framework(name).executor(build.network({"y": build.op("Add", x, x)}))
    values = draw(2, 6)
    for shape in ((2, 6), (2, 6), (3, 4), (3, 4), (2, 6)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy recommends views instead
            values.shape = shape
        found = executor.inference({"x": values})["y"]
        np.testing.assert_array_equal(found, values + values)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("rows", [3, 4000])
def test_an_interrupt_while_inputs_are_bound_leaves_no_mixture(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = executor(name, ONNXOperator("Sub"))
    one, two, three, four = (draw(rows, 50) for _ in range(4))
    for _ in range(3):
        made.inference(one, two)
    program = made._last
    method = "_bind_input" if name == "onnxruntime" else "_share"
    bind, calls = getattr(program, method), []

    def interrupted(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return bind(*given)

    monkeypatch.setattr(program, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.inference(three, four)
    for x, y in ((one, two), (one, two), (three, two), (three, four)):
        np.testing.assert_array_equal(made.inference(x, y)[0], x - y)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_what_is_no_array_is_refused_at_every_call(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    made, x = executor(name, CppPow(2)), draw(4000, 50)
    made.inference(x)
    with pytest.raises(ShapeError, match="allowed: "):
        made.inference(jnp.asarray(x))


@pytest.mark.gpu
def test_a_device_reads_what_an_input_holds_by_now() -> None:
    made = d5.framework("onnxruntime").operator_executor(ONNXOperator("Add"), device="cuda")
    for rows in (3, 4000):
        x = draw(rows, 50)
        for _ in range(4):
            x[...] = draw(rows, 50)
            np.testing.assert_array_equal(made.inference(x, x)[0], x + x)
