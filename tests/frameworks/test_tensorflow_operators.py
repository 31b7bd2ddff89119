"""TensorFlow: operators compared with ONNX Runtime, gradients with central differences, and the layout of images."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from test_tensorflow import TF, XLA, executor

import deep5 as d5
from deep5.core.errors import Unsupported
from deep5.networks import Network, NetworkBuilder, lenet, mlp, resnet
from deep5.networks.edit.builder import ones, zeros
from executor_cases import SMALL, arrays, batch, normal
from operator_cases import CONVOLUTIONS, I7, RNG, cases, named, runtime, single, with_loss

from deep5.frameworks.tensorflow.probe import runs  # isort: skip
from deep5.core.library_reports import without_reports  # isort: skip

CASES = cases("tensorflow")
QUIET = """
import sys
import numpy as np, deep5 as d5
executor = d5.framework(sys.argv[1]).executor(d5.networks.mlp(features=4, hidden=3, classes=2))
outputs = executor.inference({"input": np.ones((2, 4), np.float32), "label": np.array([0, 1])})
print(d5.to_numpy(outputs["logits"]).shape)
"""


def transposes(graph: Any) -> int:
    return collections.Counter(node.type for node in graph.get_operations())["Transpose"]


SOME = [case for case in CASES if case[0] in {"Conv", "AveragePool", "MaxPool", "BatchNormalization", "Gather"}][::4]


@pytest.mark.parametrize(("op", "values", "options"), SOME, ids=lambda value: value if isinstance(value, str) else "")
def test_operators_under_xla(op: str, values: tuple[np.ndarray, ...], options: dict[str, Any]) -> None:
    feeds = named(values)
    network = single(op, feeds, **options)
    got = XLA.executor(network).inference(feeds)["y0"]
    # The same as without XLA.
    np.testing.assert_allclose(got.numpy(), runtime(network, feeds)[0], rtol=2e-5, atol=2e-5)


def test_convolutions_that_the_kernels_do_not_know_are_written_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and dilation have gradients on every processor: without a kernel for them, deep5 uses others."""
    special = [case for case in CONVOLUTIONS if "group" in case[2] or "dilations" in case[2]]
    feeds = [named((normal(*x), normal(*w))) for x, w, _ in special]
    found: dict[bool, list[Any]] = {}
    for known in {False, runs("float32", 2, "/CPU:0")}:
        monkeypatch.setattr("deep5.frameworks.tensorflow.operators_windows.runs", lambda *_, known=known: known)
        for (_, _, options), feed in zip(special, feeds, strict=True):
            if known and len(feed["x0"].shape) == 5:
                continue
            run = executor(with_loss("Conv", feed, "float32", **options))
            run.inference_and_backprop(feed, wrt=list(feed))
            found.setdefault(known, []).append(arrays(run.gradients()))
    for ours, other in zip(found.get(True, []), found[False], strict=False):
        for name, value in ours.items():
            # Sums of some hundred float32 products.
            np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-5 * np.abs(value).max())


REFUSED: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any], str]] = [
    ("Conv", (normal(1, 1, 3, 3, 3, 3), normal(1, 1, 2, 2, 2, 2)), {}, "4 spatial axes; 1 to 3"),
    ("Gemm", (I7[:, None], I7[None]), {}, "integers"),
    (
        "MaxRoiPool",
        (normal(1, 1, 4, 4), np.zeros((1, 5), np.float32)),
        {"pooled_shape": [2, 2]},
        "has no such operator",
    ),
]


@pytest.mark.parametrize(("op", "values", "options", "reason"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_cannot_run_is_refused_with_its_reason(
    op: str, values: tuple[np.ndarray, ...], options: dict[str, Any], reason: str
) -> None:
    network = single(op, named(values), **options)
    assert not TF.supports(network.nodes[0])
    with pytest.raises(Unsupported, match=rf"(?s)tensorflow cannot run this network:\n  {op}_1 \({op}\): .*{reason}"):
        executor(network)


def test_names_from_the_model_never_enter_the_source() -> None:
    proto = mlp(**SMALL).to_onnx()
    evil = '"); import os; os.abort() #\n'
    for node in proto.graph.node:
        node.name = evil + node.name
        for names in (node.input, node.output):
            names[:] = [evil if name == "fc1.weight" else name for name in names]
    for initializer in proto.graph.initializer:
        initializer.name = evil if initializer.name == "fc1.weight" else initializer.name
    run = executor(Network.from_onnx(proto))
    run.inference_and_backprop(batch())
    assert evil in run.gradients()
    for name in ("abort", "fc1", "logits", "label", "input"):
        assert name not in run.source
    assert not any(word in run.source for word in (" for ", " if ", "while", "import", "exec", "eval("))


def test_symbolic_extents() -> None:
    """Spatial sizes, batch and classes are known only at run time; everything here depends on shapes."""
    build = NetworkBuilder("symbolic")
    x = build.input("x", ("N", 2, "H", "W"))
    y = build.op("Conv", x, build.parameter("w", (3, 2, 3, 3)), pads=[1, 1, 1, 1])
    y = build.op("AveragePool", y, kernel_shape=[2, 2], pads=[1, 0, 0, 1])
    y = build.op("MaxPool", y, kernel_shape=[2, 2], pads=[0, 1, 0, 1])
    flat = build.op("Flatten", y, axis=2)
    parts = build.op("Split", flat, outputs=2, axis=1, num_outputs=2)
    shape = build.op("Concat", build.op("Shape", y, end=2), build.constant("rest", np.array([-1])), axis=0)
    rows = build.op("Unsqueeze", build.op("Reshape", y, shape), build.constant("axes", np.array([0, 3])))
    wide = build.op(
        "Expand", build.op("Squeeze", rows, build.constant("first", np.array([0]))), build.op("Shape", rows)
    )
    last = build.op("Gather", wide, build.constant("last", np.array([-1])), axis=3)
    network = build.network({"y0": flat, "y1": parts[1], "y2": wide, "y3": last})
    run = executor(network)
    for extents in ((2, 2, 5, 4), (3, 2, 6, 7)):
        feed = {"x": normal(*extents)}
        for got, want in zip(run.inference(feed).values(), runtime(network, feed), strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-5)  # sums of some dozen products
    assert run._functions["forward", False].traces == 1


# Layouts


def test_images_stay_channels_last() -> None:
    """Transposes only at the beginning and end of the image part."""
    small = executor(lenet())
    # One channel: the input only changes shape. What remains is Flatten, forward and backward.
    assert transposes(small.graph) == 1
    assert transposes(small.train_step(d5.Adam()).graph) == 2
    for network in (resnet(depth=8), d5.networks.resnet18_small(width=4, image=16), d5.networks.inception(width=8)):
        run = executor(network)
        assert transposes(run.graph) == 1  # the input; the global average is already a vector
        assert transposes(run.train_step(d5.SGD()).graph) == 1


def image_network(tail: Callable[[NetworkBuilder, Any], Any]) -> Network:
    build = NetworkBuilder("image", dtype="float64", seed=2)
    x = build.input("input", ("N", 2, 6, 5))
    y = build.op("Conv", x, build.parameter("w", (4, 2, 3, 3)), build.parameter("b", (4,), zeros), pads=[1, 1, 1, 1])
    y = tail(build, y)
    flat = build.op("Reshape", build.op("Mul", y, build.op("Sin", y)), build.constant("flat", np.array([-1])))
    return build.network({"y": y, "loss": build.op("ReduceMean", flat, keepdims=0)})


def ints(build: NetworkBuilder, name: str, *values: int) -> Any:
    return build.constant(name, np.array(values))


TAILS: dict[str, tuple[int, Callable[[NetworkBuilder, Any], Any]]] = {
    # The number of image transposes in inference (one of the input, one of each of the two outputs that is an image),
    # and what follows the convolution.
    "vector": (3, lambda b, y: b.op("Add", y, b.parameter("v", (5,), ones))),
    "channels": (3, lambda b, y: b.op("Mul", y, b.parameter("v", (4, 1, 1)))),
    "whole": (3, lambda b, y: b.op("Sub", b.parameter("v", (1, 4, 6, 5)), y)),
    "number": (3, lambda b, y: b.op("Mul", b.scalar(3.0), y)),
    "where": (3, lambda b, y: b.op("Where", b.op("Greater", y, b.scalar(0.0)), y, b.op("Neg", y))),
    "clip": (3, lambda b, y: b.op("Clip", y, b.scalar(-0.5))),
    "softmax": (3, lambda b, y: b.op("Softmax", y, axis=1)),
    "concat": (3, lambda b, y: b.op("Concat", y, b.op("Tanh", y), axis=-3)),
    "split": (3, lambda b, y: b.op("Sub", *b.op("Split", y, outputs=2, axis=1, num_outputs=2))),
    "slice": (3, lambda b, y: b.op("Slice", y, ints(b, "s", 1, 0), ints(b, "e", 3, 5), ints(b, "a", 1, 2))),
    "pad": (3, lambda b, y: b.op("Pad", y, ints(b, "p", 0, 1, 2, 0, 0, 0, 0, 3))),
    "keep": (1, lambda b, y: b.op("ReduceMax", y, ints(b, "axes", 2, 3))),  # no spatial axes left: a reshape
    "drop": (3, lambda b, y: b.op("ReduceSum", y, ints(b, "axes", -1), keepdims=0)),
    "channel": (1, lambda b, y: b.op("ReduceMean", y, ints(b, "axes", 1), keepdims=0)),
    "turned": (1, lambda b, y: b.op("Relu", b.op("Transpose", y, perm=[0, 2, 3, 1]))),
    "turned back": (3, lambda b, y: b.op("Transpose", b.op("Transpose", y, perm=[1, 2, 0, 3]), perm=[2, 0, 1, 3])),
    "other": (3, lambda b, y: b.op("Exp", b.op("Transpose", y, perm=[3, 2, 1, 0]))),
    "identity": (3, lambda b, y: b.op("Identity", b.op("Cast", y, to=11))),
    "weight": (3, lambda b, y: b.op("Add", y, b.op("ReduceSum", b.op("Mul", W(b), W(b)), keepdims=0))),
    "gather": (2, lambda b, y: b.op("Gather", y, ints(b, "i", 3, -4), axis=1)),
    "flatten": (2, lambda b, y: b.op("Flatten", y)),
}


def W(build: NetworkBuilder) -> Any:  # noqa: N802 - the weight, which lies in another order
    return build._graph.initializers["w"]


@pytest.mark.parametrize("name", TAILS)
def test_what_follows_an_image(name: str) -> None:
    count, tail = TAILS[name]
    network = image_network(tail)
    feed = {"input": RNG.standard_normal((3, 2, 6, 5))}
    ours, reference = executor(network), d5.framework("reference").executor(network)
    for run in (ours, reference):
        run.inference_and_backprop(feed, wrt=["input", *network.parameter_specs])
    # float64 sums of some hundred products of size one.
    np.testing.assert_allclose(
        ours.inference(feed)["y"].numpy(), reference.inference(feed)["y"], rtol=1e-12, atol=1e-13
    )
    for key, value in reference.gradients().items():
        np.testing.assert_allclose(ours.gradients()[key].numpy(), value, rtol=1e-11, atol=1e-13)
    found = [node.inputs[0].shape for node in ours.graph.get_operations() if node.type == "Transpose"]
    assert len([shape for shape in found if None in shape]) == count
    assert len(found) <= count + 1  # and perhaps a parameter that is combined with an image


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["tensorflow", "tensorflow:xla"])
def test_a_first_inference_says_nothing(framework: str) -> None:
    """TensorFlow reports its options at import, and the absence of devices when it first looks for them."""
    done = subprocess.run(
        [sys.executable, "-c", QUIET, framework],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"},
    )
    assert (done.stdout, done.stderr) == ("(2, 2)\n", "")


def test_errors_of_the_start_are_let_through(capfd: pytest.CaptureFixture[str]) -> None:
    said = [
        "E0000 00:00:1795230905.709705    9870 cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)",
        "W0000 00:00:1795230905.709705    9870 any.cc:1] a warning",
        "E0000 00:00:1795230905.709705    9870 any.cc:1] an error",
        "failed call to cuInit in somebody's own words",
    ]
    with without_reports():
        os.write(2, "\n".join([*said, ""]).encode())
    kept = capfd.readouterr().err.splitlines()
    assert kept[-2:] == said[2:]
    # With a GPU present, a failure of CUDA to start is an error.
    assert kept[:-2] == (said[:1] if any(Path("/dev").glob("nvidia[0-9]*")) else [])


STRIDED = """
import numpy as np, deep5 as d5
from deep5.networks import NetworkBuilder
framework = d5.framework("tensorflow")
framework.set_threads(2)
build = NetworkBuilder("strided")
x = build.input("x", ("N", 4, 16, 16))
y = build.op("Conv", x, build.parameter("w", (8, 4, 1, 1)), strides=[2, 2])
executor = framework.executor(build.network({"loss": build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)}))
draw = np.random.default_rng(0)
for _ in range(300):
    executor.inference_and_backprop({"x": draw.standard_normal((5, 4, 16, 16)).astype("float32")}, wrt=["w", "x"])
print("fine")
"""


@pytest.mark.slow
def test_strided_convolutions_of_few_channels_leave_memory_alone() -> None:
    """Without deep5's rewriting, this convolution ends the process within a hundred gradients."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TF_NUM")}
    done = subprocess.run(
        [sys.executable, "-c", STRIDED], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert (done.returncode, done.stdout.split()) == (0, ["fine"]), done.stderr[-2000:]


@pytest.mark.daily
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("body", ["y = Gemm<transA = 1>(x, w, c)", "t = Transpose(x) p = MatMul(t, w) y = Add(p, c)"])
def test_a_product_of_a_transposed_matrix_and_a_row(body: str, rows: int) -> None:
    """On processors with AVX-512, one oneDNN kernel computes both, and accepts only a row of one axis."""
    text = f"g (float[6, {rows}] x, float[6, 4] w, float[1, 4] c) => (float[{rows}, 4] y) {{ {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    rng = np.random.default_rng(0)
    feed = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", (6, rows)), ("w", (6, 4)), ("c", (1, 4)))
    }
    found = d5.framework("tensorflow").executor(d5.Network.from_onnx(model)).inference(feed)["y"]
    np.testing.assert_allclose(d5.to_numpy(found), feed["x"].T @ feed["w"] + feed["c"], rtol=1e-5, atol=1e-6)
