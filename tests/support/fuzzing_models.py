"""The starting models of fuzzing: from ONNX's suite, from deep5's zoo, exported ones, and some hand-written ones."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from conformance import cases, model_of, samples
from deep5.networks import lenet, lstm, mlp

__all__ = ["write_models"]

# The largest model: a case should take milliseconds.
_MOST_BYTES = 1 << 20

_BY_HAND = {
    "functions": """
        <ir_version: 10, opset_import: ["": 20, "own": 1]>
        g (float[N, 4] x) => (float[N, 4] y) { a = own.twice <scale = 2.0> (x)  y = own.outer (a) }
        <opset_import: ["": 20, "own": 1], domain: "own">
        twice <scale> (x) => (y) { s = Constant <value_float: float = @scale> ()  y = Mul (x, s) }
        <opset_import: ["": 20, "own": 1], domain: "own">
        outer (x) => (y) { a = own.twice <scale = 3.0> (x)  b = Softmax <axis = -1> (a)  y = Add (a, b) }
    """,
    "branches": """
        <ir_version: 10, opset_import: ["": 20]>
        g (float[2, 3] x, bool c) => (float[2, 3] y) {
            y = If (c) <
                then_branch = t () => (float[2, 3] a) {
                    a = If (c) <
                        then_branch = t2 () => (float[2, 3] b) { b = Relu (x) },
                        else_branch = e2 () => (float[2, 3] d) { d = Neg (x) }
                    >
                },
                else_branch = e () => (float[2, 3] e) { e = Abs (x) }
            >
        }
    """,
    "loop": """
        <ir_version: 10, opset_import: ["": 20]>
        g (float[2] x, int64 n) => (float[2] y, float[k, 2] all)
        <bool yes = {1}> {
            y, all = Loop (n, yes, x) <
                body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] u) {
                    d = Identity (c)  f = CastLike (i, s)  t = Add (s, f)  u = Identity (t)
                }
            >
        }
    """,
    "shapes": """
        <ir_version: 10, opset_import: ["": 20]>
        g (float[N, 6] x) => (float[a, b] y, float[c] z)
        <int64[2] goal = {-1, 3}, int64[1] count = {4}, int64 start = {0}, int64 limit = {4}, int64 delta = {1},
         int64[2] wide = {2, 1}, int64[1] starts = {0}, int64[1] ends = {9223372036854775807}, int64[1] axes = {0}> {
            r = Reshape (x, goal)
            f = ConstantOfShape <value = float[1] {2.0}> (count)
            i = Range (start, limit, delta)
            w = Cast <to = 1> (i)
            z = Mul (f, w)
            t = Tile (r, wide)
            e = Slice (t, starts, ends, axes)
            h = Shape (e)
            y = Expand (e, h)
        }
    """,
    "many": """
        <ir_version: 10, opset_import: ["": 20]>
        g (float[2, 3, 8, 8] x) => (float[a, b] y)
        <int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, float[4] scales = {1.0, 1.0, 2.0, 2.0}, int64[1] k = {2},
         int64[2] split = {1, 2}, int64[1] axis = {1}, int64[3] index = {0, 2, 1}> {
            p = Pad <mode = "reflect"> (x, pads)
            m = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (p)
            r = Resize <mode = "linear"> (m, , scales)
            a, b = Split <axis = 1> (r, split)
            c = Concat <axis = 1> (b, a)
            v, i = TopK <axis = -1> (c, k)
            t = Transpose <perm = [0, 2, 3, 1]> (v)
            q = Gather <axis = 3> (t, index)
            s = ReduceMean <keepdims = 0> (q, axis)
            y = Flatten <axis = 2> (s)
        }
    """,
    "nested_loops": """
        <ir_version: 10, opset_import: ["": 20]>
        g (float[3] x) => (float[3] y)
        <int64 n = {2}, bool yes = {1}> {
            y = Loop (n, yes, x) <
                body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t) {
                    d = Identity (c)
                    t = Loop (n, c, s) <
                        body = b2 (int64 i2, bool c2, float[3] s2) => (bool d2, float[3] t2) {
                            d2 = Identity (c2)  t2 = Add (s2, x)
                        }
                    >
                }
            >
        }
    """,
}


def write_models(folder: Path) -> list[str]:
    """Write the starting models, `NAME.onnx`, and their inputs, `NAME.npz`; returns their names."""
    found: dict[str, tuple[bytes, list[Any]]] = {}
    for name, model, inputs in _all():
        data = model.SerializeToString()
        if len(data) <= _MOST_BYTES:
            found[name] = data, inputs
    for name, (data, inputs) in found.items():
        (folder / f"{name}.onnx").write_bytes(data)
        kept = {
            str(number): value
            for number, value in enumerate(inputs)
            if isinstance(value, np.ndarray) and value.dtype.isbuiltin == 1 and value.dtype.kind in "biuf"
        }
        np.savez(folder / f"{name}.npz", **kept)
    return sorted(found)


def _all() -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    for suite in ("node", "converted", "operator", "simple"):
        for name, case in cases(suite).items():
            model = model_of(case)
            yield f"{suite}_{name}", model, next(samples(case, model), ([], []))[0]
    for name, text in _BY_HAND.items():
        yield f"hand_{name}", onnx.parser.parse_model(text), []
    for network in (mlp(features=4, hidden=5, classes=3), lenet(), lstm(features=4, hidden=5, length=3, classes=3)):
        yield f"zoo_{network.model.graph.name}", network.to_onnx(), []
    yield "hand_external", _external(), []
    yield from _exported()


def _external() -> onnx.ModelProto:
    """A model with a weight in the file `weights.bin`, which the caller puts next to it."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[2, 4] x) => (float[2, 3] y) { y = MatMul (x, w) }'
    )
    tensor = numpy_helper.from_array(np.zeros((4, 3), np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "48")):
        tensor.external_data.add(key=key, value=value)
    model.graph.initializer.append(tensor)
    return model


def _exported() -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    import torch

    class Looping(torch.nn.Module):
        """A loop and a branch, which an export writes as Loop and If."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            for step in range(int(n)):
                x = self.layer(x) if bool(x.sum() > step) else x - 1
            return x

    torch.manual_seed(0)
    recurrent = torch.nn.GRU(3, 2, batch_first=True, bidirectional=True)
    for name, module, inputs in (
        ("looping", torch.jit.script(Looping()), (torch.ones(2, 3), torch.tensor(3))),
        ("recurrent", recurrent, (torch.ones(2, 4, 3),)),
    ):
        file = io.BytesIO()
        torch.onnx.export(module, inputs, file, dynamo=False, opset_version=18)
        yield f"exported_{name}", onnx.ModelProto.FromString(file.getvalue()), [value.numpy() for value in inputs]
