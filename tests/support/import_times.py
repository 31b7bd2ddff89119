"""How long a network of 1000 nodes takes to be read and made runnable.

`python tests/support/import_times.py FRAMEWORK FILE [--call]` times one framework, with the first call where asked to.

The framework is imported, and a small network was run on it, before the clock starts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NODES = 1000
_CHANNELS, _SIDE = 4, 8


def write_network(path: Path, nodes: int = NODES) -> None:
    """Write a deep network of mixed operators: convolutions, normalizations, activations, sums and changes of shape."""
    rng, made, initial = np.random.default_rng(0), list[onnx.NodeProto](), list[onnx.TensorProto]()

    def held(name: str, array: np.ndarray) -> str:
        initial.append(numpy_helper.from_array(array, name))
        return name

    def node(op_type: str, *inputs: str, **attributes: object) -> str:
        made.append(helper.make_node(op_type, inputs, [f"v{len(made)}"], name=f"{op_type}_{len(made)}", **attributes))
        return str(made[-1].output[0])

    def small(*shape: int) -> np.ndarray:
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)

    flat, whole = held("flat", np.array([0, -1])), held("whole", np.array([0, _CHANNELS, _SIDE, _SIDE]))
    x = "x"
    while len(made) < nodes - 10:
        at, shortcut = len(made), x
        x = node("Conv", x, held(f"w{at}", small(_CHANNELS, _CHANNELS, 3, 3)), pads=[1, 1, 1, 1])
        statistics = (np.ones(_CHANNELS), np.zeros(_CHANNELS), np.zeros(_CHANNELS), np.ones(_CHANNELS))
        x = node("BatchNormalization", x, *(held(f"b{at}_{i}", s.astype(np.float32)) for i, s in enumerate(statistics)))
        x = node("Relu", x)
        x = node("Add", x, shortcut)
        x = node("Reshape", node("Transpose", node("Reshape", x, flat), perm=[0, 1]), whole)
        x = node("Mul", node("Sigmoid", x), x)
    while len(made) < nodes:
        x = node("Tanh", x)
    shape = ["N", _CHANNELS, _SIDE, _SIDE]
    graph = helper.make_graph(
        made,
        "thousand",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)],
        initial,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def measured(name: str, path: Path, *, call: bool) -> dict[str, float]:
    """Seconds for reading and for the executor, and for the first call, which compiles on some frameworks."""
    import deep5 as d5
    from deep5.core.tensors import to_numpy
    from deep5.networks import lenet

    framework = d5.framework(name)
    inputs = {"input": np.zeros((1, 1, 28, 28), np.float32), "label": np.zeros(1, np.int64)}
    to_numpy(framework.executor(lenet()).inference(inputs)["loss"])
    start = time.perf_counter()
    network = d5.Network.from_onnx(path)
    read = time.perf_counter()
    executor = framework.executor(network)
    ready = time.perf_counter()
    found = {"import_s": read - start, "executor_s": ready - read}
    if call:
        for value in executor.inference({"x": np.ones((2, _CHANNELS, _SIDE, _SIDE), np.float32)}).values():
            to_numpy(value)
        found["first_call_s"] = time.perf_counter() - ready
    return {"nodes": len(network.nodes), **{key: round(value, 3) for key, value in found.items()}}


if __name__ == "__main__":
    if not Path(sys.argv[2]).exists():
        write_network(Path(sys.argv[2]))
    sys.stdout.write(f"{json.dumps(measured(sys.argv[1], Path(sys.argv[2]), call='--call' in sys.argv))}\n")
