"""Fuzzing: mutated models raise only Deep5Errors, in bounded time and memory, and no other file is opened."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import conformance
import deep5 as d5
import fuzzing_models
import kept
from deep5.core.errors import MissingDependency, NetworkError, Unsupported
from fuzzing import fuzz
from fuzzing_models import write_models

# Cases in a daily run, and in `make test-all`: those of TensorFlow and JAX are traced or compiled.
DAILY = {"reference": 150, "onnxruntime": 100, "pytorch": 125, "tensorflow": 50, "jax": 50}
LONG = {"reference": 10_000, "onnxruntime": 6000, "pytorch": 8000, "tensorflow": 2000, "jax": 2000}
FRAMEWORKS = sorted(DAILY)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the suite and the exporter about future versions
            assert len(write_models(folder)) > 1900

    # The models are ONNX's own, and some that deep5 writes.
    writers = Path(d5.networks.__file__).parent.rglob("*.py")
    sources = [Path(fuzzing_models.__file__), Path(conformance.__file__), *sorted(writers)]
    packages = ("onnx", "torch", "numpy")
    return kept.folder("models", make, tmp_path_factory.mktemp("models"), sources=sources, packages=packages)


def run(framework: str, models: Path, numbers: range) -> None:
    try:
        d5.framework(framework)
    except MissingDependency as error:
        pytest.skip(str(error))
    report = fuzz(framework, models, numbers)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert len(report.runs) == len(numbers)
    assert report.reached() > 0.5, str(report)
    assert sum(each.outcome == "undrawn" for each in report.runs) <= 0.02 * len(numbers), str(report)


@pytest.mark.daily
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_sample(framework: str, models: Path) -> None:
    run(framework, models, range(DAILY[framework]))


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_many(framework: str, models: Path) -> None:
    run(framework, models, range(DAILY[framework], LONG[framework]))


def test_what_is_found_is_told(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that leaks an error, ends the process, opens another file, or uses too much memory or time is caught."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import os, time, sys
if "fuzzing.py" in " ".join(sys.orig_argv):
    import pathlib
    import deep5.networks.onnx.importing as importing
    right, calls = importing.import_model, []
    def wrong(source, *others):
        calls.append(source)
        beside = pathlib.Path(source).parents[1] / "outside" / "secret.bin"
        if len(calls) == 2: raise KeyError("leaked")
        if len(calls) == 3: beside.read_bytes()
        if len(calls) == 4: bytearray(7 << 29)
        if len(calls) == 5: os._exit(1)
        return right(source, *others)
    importing.import_model = wrong
""",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = fuzz("reference", models, range(4))
    assert [found.outcome for found in report.findings][:4] == ["leaked", "opened", "memory", "crashed"]


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20, "own": 1]> {text}')


def test_functions_that_double_are_refused_before_they_are_written_out() -> None:
    made = model("g (float[2] x) => (float[2] y) { y = own.f39 (x) }")
    for level in range(40):
        call, domain = (f"f{level - 1}", "own") if level else ("Identity", "")
        body = [
            helper.make_node(call, ["a"], ["m"], domain=domain),
            helper.make_node(call, ["m"], ["b"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
        made.functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], body, opsets))
    with pytest.raises(NetworkError, match=r"1,099,511,627,776 nodes; allowed: 100,000 beyond"):
        d5.Network.from_onnx(made)
    made.graph.node[0].op_type = "f3"
    assert len(d5.Network.from_onnx(made).nodes) == 16


def test_functions_that_call_themselves_are_refused() -> None:
    made = model("g (float[2] x) => (float[2] y) { y = own.f (x) }")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    for name, other in (("f", "h"), ("h", "f")):
        body = [helper.make_node(other, ["a"], ["b"], domain="own")]
        made.functions.append(helper.make_function("own", name, ["a"], ["b"], body, opsets))
    with pytest.raises(NetworkError, match=r"the function 'own.[fh]' calls itself, directly or by way of others"):
        d5.Network.from_onnx(made)


@pytest.mark.parametrize("extent", [-2, -(2**63)])
def test_an_extent_below_zero_is_refused_wherever_it_stands(extent: int) -> None:
    """ONNX's own inference ends the process on a slice of such a value."""
    made = model("g (float[4] x, int64[1] s) => (float[N] y) { z = Relu (x) y = Slice (z, s, s) }")
    made.graph.value_info.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [extent]))
    with pytest.raises(NetworkError, match=f"the value 'z' has the dimension {extent}; allowed: at least 0"):
        d5.Network.from_onnx(made)


def test_a_sparse_constant_below_zero_is_refused() -> None:
    made = model("g (int64[1] s) => (float[N] y) { y = Slice (c, s, s) }")
    values, indices = np.ones(1, np.float32), np.zeros(1, np.int64)
    tensor = helper.make_sparse_tensor(numpy_helper.from_array(values), numpy_helper.from_array(indices), [-1])
    made.graph.node.insert(0, helper.make_node("Constant", [], ["c"], sparse_value=tensor))
    with pytest.raises(NetworkError, match="the value 'c' has the dimension -1"):
        d5.Network.from_onnx(made)


def test_a_long_vector_is_not_counted_out() -> None:
    """ONNX's inference visits each element of a vector when it propagates the values of shapes."""
    made = model(f"g (float[{1 << 40}] x, int64[1] i) => (float[1] y) {{ y = Gather (x, i) }}")
    assert d5.Network.from_onnx(made).outputs["y"].shape == (1,)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_array_beyond_memory_is_refused_before_it_is_made(framework: str) -> None:
    text = f"<int64[1] goal = {{{1 << 40}}}> {{ z = Expand (x, goal) y = ReduceSum <keepdims = 1> (z) }}"
    network = d5.Network.from_onnx(model(f"g (float[1] x) => (float[1] y) {text}"))
    with pytest.raises(
        Unsupported, match=r"Expand.*of shape \[1099511627776\] takes 4.4e\+12 bytes; allowed: 1.1e\+12"
    ):
        d5.framework(framework).executor(network)


@pytest.mark.parametrize("text", ["ConstantOfShape (s)", "Expand (x, s)", "Reshape (x, s)"])
def test_an_array_of_too_many_axes_is_refused(text: str) -> None:
    """ONNX Runtime's inference stores each of them."""
    body = f"<int64 zero = {{0}}, int64 one = {{1}}, int64 goal = {{{1 << 31}}}>"
    made = model(f"g (float x) => (float[N] y) {body} {{ s = Range (zero, goal, one) y = {text} }}")
    with pytest.raises(NetworkError, match="would make an array of 2,147,483,648 dimensions; allowed: at most 64"):
        d5.Network.from_onnx(made)


def test_sizes_below_zero_are_refused_before_jax_asserts_their_product() -> None:
    made = model("g (float[1, 1] x, int64[2] goal) => (float[a, b] y) { z = Tile (x, goal) y = Ceil (z) }")
    executor = d5.framework("jax").executor(d5.Network.from_onnx(made))
    with pytest.raises(NetworkError, match=r"Tile\): got -9223372036854775808; allowed: at least 0"):
        executor.inference({"x": np.ones((1, 1), np.float32), "goal": np.full(2, -(2**63))})


def test_numbers_of_eight_bits_are_fed_to_tensorflow() -> None:
    """NumPy classifies them as floating-point numbers, but cannot export them."""
    import ml_dtypes

    network = d5.Network.from_onnx(model("g (float8e5m2[3] unread, float[3] x) => (float[3] y) { y = Neg (x) }"))
    feed = {"unread": np.ones(3, ml_dtypes.float8_e5m2), "x": np.array([1, 2, 3], np.float32)}
    found = d5.framework("tensorflow").executor(network).inference(feed)["y"]
    assert np.array_equal(d5.core.tensors.to_numpy(found), [-1, -2, -3])


@pytest.mark.parametrize("framework", ["reference", "pytorch", "jax"])
def test_an_error_of_the_framework_names_the_node(framework: str) -> None:
    """A count that is fed is unknown before the network runs."""
    made = model("g (float[2, 3] x, int64[2] goal) => (float[a, b] y) { z = Neg (x) y = Reshape (z, goal) }")
    made.graph.node[1].name = "shaped"
    executor = d5.framework(framework).executor(d5.Network.from_onnx(made))
    with pytest.raises(NetworkError, match=r"cannot run the network on these inputs \(.*shaped.*Reshape.*\)"):
        executor.inference({"x": np.ones((2, 3), np.float32), "goal": np.array([5, 4])})
    good = executor.inference({"x": np.ones((2, 3), np.float32), "goal": np.array([3, 2])})
    assert d5.core.tensors.to_numpy(good["y"]).shape == (3, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("y = Cast (x)", "the attribute 'to' is missing; allowed: INT, which is required"),
        ('y = Softmax <axis = "1"> (x)', "the attribute 'axis' holds STRING; allowed: INT"),
        ("y = MaxPool <kernel_shape = [0]> (x)", "got kernel_shape=0; allowed: 1 to 2147483647"),
        ("y = Conv <pads = [0, 2147483648]> (x, x)", "got pads=2147483648; allowed: up to 2147483647"),
        ("y = Conv (x)", "got 1 inputs; allowed: 2 to 3"),
        ("y = Add (, x)", "the input 'A' is left out; allowed: a value, since it is required"),
    ],
)
def test_settings_are_held_to_the_schema_before_onnx_sees_them(text: str, said: str) -> None:
    """ONNX's inference runs before its checker, and ends the process when an attribute or an input is missing."""
    made = model(f"g (float[2] x) => (float[N] y) {{ {text} }}")
    made.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(NetworkError, match=said):
        d5.Network.from_onnx(made)


@pytest.mark.parametrize("location", ["\0", "weights.bin\0", "a\0b"])
def test_a_location_with_a_null_is_refused(location: str, tmp_path: Path) -> None:
    made = model("g (float[2] x) => (float[2] y) { y = Add (x, w) }")
    tensor = made.graph.initializer.add(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(NetworkError, match="null"):
        d5.Network.from_onnx(path)


def test_a_window_wider_than_all_channels_takes_no_longer() -> None:
    x = np.arange(24, dtype=np.float32).reshape(1, 6, 2, 2)
    found = []
    for size in (13, 2_000_000_001):
        text = (
            f"g (float[1, 6, 2, 2] x) => (float[1, 6, 2, 2] y) {{ y = LRN <size = {size}, alpha = {float(size)}> (x) }}"
        )
        found.append(d5.framework("reference").executor(d5.Network.from_onnx(model(text))).inference({"x": x})["y"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
