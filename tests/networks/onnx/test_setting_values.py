"""Sizes, axes and factors that no operator accepts are refused before an engine sees them: constants and fed ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core import memory
from deep5.core.errors import NetworkError
from deep5.core.tensors import to_numpy

HEAD = '<ir_version: 9, opset_import: ["": 20]> '
FRAMEWORKS = ["reference", "pytorch", "jax", "onnxruntime", "tensorflow", "openvino"]
HUGE = 1 << 42
# Inputs and outputs, the node, the settings by name with numbers that are not allowed, and what the message says.
CASES = {
    "ConstantOfShape below 0": (
        "int64[1] s",
        "float[n]",
        "ConstantOfShape (s)",
        {"s": [-3]},
        "got -3; allowed: at least 0",
    ),
    "ConstantOfShape huge": (
        "int64[1] s",
        "float[n]",
        "ConstantOfShape (s)",
        {"s": [HUGE]},
        "takes 1.8e.13 bytes; allowed:",
    ),
    "Expand": (
        "float[1] x, int64[2] s",
        "float[m, n]",
        "Expand (x, s)",
        {"s": [-2, 1]},
        "got -2; allowed: at least -1",
    ),
    "Tile below 0": ("float[2] x, int64[1] s", "float[n]", "Tile (x, s)", {"s": [-2]}, "got -2; allowed: at least 0"),
    "Tile huge": ("float[2] x, int64[1] s", "float[n]", "Tile (x, s)", {"s": [HUGE]}, "takes 3.5e.13 bytes; allowed:"),
    "Range huge": ("int64 s", "int64[n]", "Range (zero, s, one)", {"s": HUGE}, "takes 3.5e.13 bytes; allowed:"),
    "Range NaN": ("float s", "float[n]", "Range (low, s, high)", {"s": np.nan}, "got nan; allowed: a finite number"),
    "OneHot below 0": (
        "int64[2] i, int64 s",
        "float[2, n]",
        "OneHot (i, s, onoff)",
        {"s": -4},
        "got -4; allowed: at least 0",
    ),
    "OneHot huge": ("int64[2] i, int64 s", "float[2, n]", "OneHot (i, s, onoff)", {"s": HUGE}, "takes 3.5e.13 bytes"),
    "Pad huge": ("float[2] x, int64[2] s", "float[n]", "Pad (x, s)", {"s": [0, HUGE]}, "takes 1.8e.13 bytes; allowed:"),
    "Resize NaN": (
        "float[1,1,2,2] x, float[4] s",
        "float[a,b,c,d]",
        "Resize (x, , s)",
        {"s": [1, 1, np.nan, 1]},
        "got nan; allowed: finite factors above 0",
    ),
    "Resize infinite": (
        "float[1,1,2,2] x, float[4] s",
        "float[a,b,c,d]",
        "Resize (x, , s)",
        {"s": [1, 1, np.inf, 1]},
        "got inf; allowed: finite factors above 0",
    ),
    "Resize 0": (
        "float[1,1,2,2] x, float[4] s",
        "float[a,b,c,d]",
        "Resize (x, , s)",
        {"s": [1, 1, 0, 1]},
        "got 0.0; allowed: finite factors above 0",
    ),
    "Resize sizes": (
        "float[1,1,2,2] x, int64[4] s",
        "float[a,b,c,d]",
        "Resize (x, , , s)",
        {"s": [1, 1, -5, 3]},
        "got -5; allowed: at least 1",
    ),
    "Resize huge": (
        "float[1,1,2,2] x, int64[4] s",
        "float[a,b,c,d]",
        "Resize (x, , , s)",
        {"s": [1, 1, 1 << 21, 1 << 21]},
        "takes 1.8e.13 bytes; allowed:",
    ),
    "TopK": (
        "float[4] x, int64[1] s",
        "float[n]",
        "TopK (x, s)",
        {"s": [1 << 40]},
        "got 1099511627776; allowed: 0 to 2147483647",
    ),
    "CumSum": (
        "float[4] x, int64 s",
        "float[4]",
        "CumSum (x, s)",
        {"s": 9},
        "got the axis 9 of 1 dimensions; allowed: -1 to 0",
    ),
    "Unsqueeze": (
        "float[4] x, int64[1] s",
        "float[a, b]",
        "Unsqueeze (x, s)",
        {"s": [1 << 40]},
        "got the axis 1099511627776 of 2 dimensions; allowed: -2 to 1",
    ),
    "ReduceSum": (
        "float[4] x, int64[1] s",
        "float[a]",
        "ReduceSum (x, s)",
        {"s": [-2]},
        "got the axis -2 of 1 dimensions; allowed: -1 to 0",
    ),
    "Slice": (
        "float[4] x, int64[1] s",
        "float[a]",
        "Slice (x, at, to, s)",
        {"s": [3]},
        "got the axis 3 of 1 dimensions; allowed: -1 to 0",
    ),
    "Slice step": (
        "float[4] x, int64[1] s",
        "float[a]",
        "Slice (x, at, to, at, s)",
        {"s": [0]},
        "got the step 0; allowed: any other",
    ),
    "Split": ("float[4] x, int64[2] s", "float[a]", "Split (x, s)", {"s": [9, -5]}, "got -5; allowed: at least 0"),
    "DFT": ("float[1, 4, 1] x, int64 s", "float[1, a, 2]", "DFT (x, s)", {"s": 0}, "got 0; allowed: at least 1"),
    "HannWindow": ("int64 s", "float[a]", "HannWindow (s)", {"s": -2}, "got -2; allowed: at least 0"),
}
VALUES = {
    "zero": "int64 zero = {0}", "one": "int64 one = {1}", "low": "float low = {0}", "high": "float high = {1}",
    "onoff": "float[2] onoff = {0, 1}", "at": "int64[1] at = {0}", "to": "int64[1] to = {2}",
}  # fmt: skip


def model(inputs: str, output: str, node: str) -> onnx.ModelProto:
    used = ", ".join(
        text for name, text in VALUES.items() if f" {name}" in f" {node}".replace("(", " ").replace(",", " ,")
    )
    outputs = "y, z" if node.startswith(("TopK", "Split")) else "y"
    return onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({output} y) <{used}> {{ {outputs} = {node} }}")


def array(value: object, like: str) -> np.ndarray:
    return np.array(value, np.float32 if like.startswith("float") else np.int64)


def type_of(inputs: str, name: str) -> str:
    return next(part.split()[0] for part in inputs.replace("[1,1,2,2]", "[q]").split(", ") if part.split()[-1] == name)


@pytest.mark.parametrize("what", CASES)
def test_a_constant_is_refused(what: str) -> None:
    inputs, output, node, settings, _ = CASES[what]
    made = model(inputs, output, node)
    for name, value in settings.items():
        given = next(each for each in made.graph.input if each.name == name)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array(value, type_of(inputs, name)), name))
        made.graph.input.remove(given)
    if "huge" not in what:  # ONNX refuses some itself
        with pytest.raises(NetworkError, match=r"allowed|remedy|not valid"):
            d5.Network.from_onnx(made)
        return
    with pytest.raises((NetworkError, d5.Unsupported), match=r"takes .* bytes; allowed: "):
        d5.framework("reference").executor(d5.Network.from_onnx(made)).inference(feed(made))


def feed(made: onnx.ModelProto) -> dict[str, np.ndarray]:
    found = {}
    for value in made.graph.input:
        own = value.type.tensor_type
        kind = onnx.helper.tensor_dtype_to_np_dtype(own.elem_type)
        found[value.name] = np.ones([extent.dim_value or 2 for extent in own.shape.dim], kind)
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("what", CASES)
def test_a_fed_one_is_refused(what: str, framework: str) -> None:
    inputs, output, node, settings, says = CASES[what]
    made = model(inputs, output, node)
    try:
        executor = d5.framework(framework).executor(d5.Network.from_onnx(made))
    except d5.Unsupported as error:
        pytest.skip(f"{framework} has no such operator: {str(error)[:80]}")
    given = feed(made) | {name: array(value, type_of(inputs, name)) for name, value in settings.items()}
    with pytest.raises(NetworkError, match=f"input 's', a setting of the node .*: .*{says}.*; remedy: "):
        executor.inference(given)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_array_larger_than_what_is_free_is_refused(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes are known when the inputs are."""
    network = d5.Network.from_onnx(model("float[n, 1] x, float[1, m] w", "float[n, m]", "MatMul (x, w)"))
    executor = d5.framework(framework).executor(network)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 30)
    with pytest.raises(
        NetworkError, match=r"takes 2\.1e\+09 bytes.*; allowed: 8\.1e\+08, three quarters of what is free"
    ):
        executor.inference({"x": np.ones((1 << 14, 1), np.float32), "w": np.ones((1, 1 << 15), np.float32)})


def test_a_result_that_jax_could_not_compute_is_an_error() -> None:
    """JAX computes after the call returns; the conversion of what failed would end the process."""
    text = """g (float[N, 1] x) => (float y) {
        t = Transpose (x) z = MatMul (x, t) one = Constant <value_ints = [1]> ()
        largest, places = TopK (z, one) y = ReduceMax <keepdims = 0> (largest) }"""
    executor = d5.framework("jax").executor(d5.Network.from_onnx(onnx.parser.parse_model(HEAD + text)))
    with pytest.raises(d5.Deep5Error, match=r"memory|RESOURCE_EXHAUSTED"):
        to_numpy(executor.inference({"x": np.ones((1 << 20, 1), np.float32)})["y"])


def test_the_memory_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, held = tmp_path / "max", tmp_path / "current"
    most.write_text("5000\n")
    held.write_text("2000\n")
    monkeypatch.setattr(memory, "_GROUPS", ((most, held),))
    assert memory.available_bytes() == 3000
    most.write_text("max\n")
    assert memory.available_bytes() > 3000
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.available_bytes() == 1 << 40
