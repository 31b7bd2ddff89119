"""The bare matrix product of a framework, a reference for its training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from deep5.core.seeds import generator

__all__ = ["onnxruntime_product", "pytorch_product"]

Work = Callable[[], object]


def _operands(size: int, seed: int) -> tuple[Any, Any]:
    draw = generator(seed, "overhead", "product")
    return tuple(draw.standard_normal((size, size), dtype=np.float32) for _ in range(2))


def onnxruntime_product(*, steps: int, seed: int, threads: int, size: int) -> Work:
    """`size` x `size` float32 matrix products in a plain session of ONNX Runtime.

    Args:
        steps: Products per call.
        seed: Seed of the operands.
        threads: Threads of the session.
        size: Rows and columns of the operands.
    """
    import onnx
    import onnxruntime as ort

    a, b = _operands(size, seed)
    spec = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size, size]) for name in "aby"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["a", "b"], ["y"])], "product", spec[:2], spec[2:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    out = ort.OrtValue.ortvalue_from_numpy(np.empty((size, size), np.float32))
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", ort.OrtValue.ortvalue_from_numpy(a))
    binding.bind_ortvalue_input("b", ort.OrtValue.ortvalue_from_numpy(b))
    binding.bind_ortvalue_output("y", out)

    def work() -> None:
        for _ in range(steps):
            session.run_with_iobinding(binding)

    return work


def pytorch_product(*, steps: int, seed: int, threads: int, size: int) -> Work:
    """The same products by `torch.mm`; arguments as in `onnxruntime_product`."""
    import torch

    torch.set_num_threads(threads)
    a, b = (torch.from_numpy(operand) for operand in _operands(size, seed))
    out = torch.empty(size, size)

    def work() -> None:
        for _ in range(steps):
            torch.mm(a, b, out=out)

    return work
