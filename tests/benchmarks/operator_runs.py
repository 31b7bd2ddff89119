"""The benchmarks of `make operator-bench`: `framework.case.size.direction`, and the peak memory of the large size."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from operator_shapes import CASES, Case, operator_of
from registry import register

FRAMEWORKS = ("pytorch", "tensorflow", "jax")
SIZES = ("small", "large")
DIRECTIONS = ("forward", "gradient")
MEMORY = ".memory"
"""The end of the name of a benchmark that measures bytes."""


def names_of(framework: str, case: str) -> list[str]:
    """The benchmarks of a case on a back-end, in the order in which they share executors."""
    directions = DIRECTIONS if CASES[case](False).gradient else DIRECTIONS[:1]
    times = [f"{framework}.{case}.{size}.{direction}" for size in SIZES for direction in directions]
    return [each for name in times for each in ([name, name + MEMORY] if ".large." in name else [name])]


def model_of(operator: str, case: Case, *, gradient: bool) -> Any:
    """The node in a model, followed by a loss where the gradient is measured: the sum of squares of an output."""
    import onnx
    from onnx import helper, numpy_helper

    feeds = [np.asarray(feed) for feed in case.feeds]
    names = [f"x{index}" for index in range(len(feeds))]
    nodes = []
    for index, constant in enumerate(case.constants):
        names.append("" if constant is None else f"c{index}")
        if constant is not None:
            value = numpy_helper.from_array(np.asarray(constant), f"c{index}")
            nodes.append(helper.make_node("Constant", [], [f"c{index}"], value=value))
    op_type = operator.removeprefix(f"{case.domain}.") if case.domain else operator
    outputs = [f"y{index}" for index in range(case.outputs)]
    nodes.append(helper.make_node(op_type, names, outputs, domain=case.domain, **case.attributes))
    if gradient:
        nodes += [
            helper.make_node("Mul", ["y0", "y0"], ["square"]),
            helper.make_node("ReduceSum", ["square"], ["loss"], keepdims=0),
        ]
        outputs = ["loss"]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(feed.dtype), feed.shape)
        for name, feed in zip(names, feeds, strict=False)
    ]
    known = {}
    if case.shape is not None:
        known["y0"] = helper.make_tensor_value_info("y0", onnx.TensorProto.FLOAT, case.shape)
    graph = helper.make_graph(
        nodes,
        "operator",
        inputs,
        [known.get(name) or onnx.ValueInfoProto(name=name) for name in outputs],
        value_info=known.values() if gradient else (),
    )
    opsets = [helper.make_opsetid("", case.opset)]
    if case.domain:
        opsets.append(helper.make_opsetid(case.domain, 1))
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def _converter(framework: str) -> Callable[[Any], Any]:
    """NumPy's arrays as those of the back-end, so that no call copies its inputs."""
    if framework == "pytorch":
        import torch

        return torch.from_numpy
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.constant
    import jax
    import jax.numpy as jnp

    def converted(array: Any) -> Any:
        with jax.enable_x64(True):  # otherwise 64 bits become 32
            return jnp.asarray(array)

    return converted


@lru_cache(maxsize=1)
def _call(framework: str, name: str, large: bool, gradient: bool) -> Callable[[], object]:
    import deep5 as d5

    case = CASES[name](large)
    network = d5.Network.from_onnx(model_of(operator_of(name), case, gradient=gradient))
    executor, convert = d5.framework(framework).executor(network), _converter(framework)
    arrays = {f"x{index}": np.asarray(feed) for index, feed in enumerate(case.feeds)}
    inputs = {key: convert(array) for key, array in arrays.items()}
    moving = [key for key, array in arrays.items() if array.dtype == np.float32]

    def forward() -> None:
        executor.inference(inputs)
        executor.synchronize()

    def both() -> None:
        executor.inference_and_backprop(inputs, wrt=moving)
        executor.synchronize()

    return both if gradient else forward


def _benchmark(framework: str, case: str, name: str) -> None:
    size, direction, *memory = name.removeprefix(f"{framework}.{case}.").split(".")

    @register(name, group=framework, peak=bool(memory), sample_s=0.004)
    def setup(folder: Path) -> Callable[[], object]:
        return _call(framework, case, size == "large", direction == "gradient")


for _framework in FRAMEWORKS:
    for _case in CASES:
        for _name in names_of(_framework, _case):
            _benchmark(_framework, _case, _name)
