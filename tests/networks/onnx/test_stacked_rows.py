"""Sequences that a Loop fills and that are then concatenated: torch's `embedding_bag`, on every back-end."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import deep5 as d5
from deep5.core.tensors import to_numpy

FRAMEWORKS = ["reference", "pytorch", "jax", "onnxruntime", "tensorflow"]
ROWS = torch.tensor([1, 2, 4, 5, 4, 3, 2, 0])
BODY = """y = Loop (n, , s) <body = b (int64 i, bool c, seq(float[1, 2]) q) => (bool d, seq(float[1, 2]) r) {
    d = Identity (c) f = CastLike (i, x) row = Mul (x, f) r = SequenceInsert (q, row) }>"""


class Bag(torch.nn.Module):
    def __init__(self, mode: str, padding: int | None, last: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag = torch.nn.EmbeddingBag(7, 3, mode=mode, padding_idx=padding, include_last_offset=last)

    def forward(
        self, rows: torch.Tensor, offsets: torch.Tensor | None = None, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        found: torch.Tensor = self.bag(rows, offsets, weights)
        return found


BAGS = {
    "sum": ("sum", None, False, (ROWS, torch.tensor([0, 3]))),
    "rows of one length": ("mean", None, False, (ROWS.reshape(2, 4),)),
    "max with an empty bag": ("max", None, False, (ROWS, torch.tensor([0, 3, 3]))),
    "mean with a padding": ("mean", 2, False, (ROWS, torch.tensor([0, 3, 3]))),
    "last offset": ("sum", 2, True, (ROWS, torch.tensor([0, 3, 3, 8]))),
    "weights": ("sum", None, False, (ROWS, torch.tensor([0, 3]), torch.arange(8.0) / 3)),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("what", BAGS)
@pytest.mark.parametrize("exporter", ["dynamo", "jit"])
def test_embedding_bag_is_torch_s(exporter: str, what: str, framework: str) -> None:
    mode, padding, last, given = BAGS[what]
    if exporter == "jit" and (padding is not None or "empty" in what):
        pytest.skip("torch.jit does not export a padding, and writes the lowest number for an empty bag")
    module = Bag(mode, padding, last).eval()
    expected = module(*given).detach().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            program = torch.onnx.export(module, given, dynamo=True, verbose=False)
            assert program is not None
            model = program.model_proto
        else:
            file = io.BytesIO()
            torch.onnx.export(module, given, file, dynamo=False, opset_version=17)
            model = onnx.ModelProto.FromString(file.getvalue())
    network = d5.Network.from_onnx(model)
    assert [spec.shape for spec in network.parameter_specs.values()] == [(7, 3)]
    names = [value.name for value in model.graph.input]
    feed = {name: value.numpy() for name, value in zip(names, given, strict=True) if name in network.inputs}
    executor = d5.framework(framework).executor(network)
    found = to_numpy(next(iter(executor.inference(feed).values())))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "operators"),
    [
        ("z = ConcatFromSequence <axis = 0> (y)", False),
        ("z = ConcatFromSequence <axis = 0, new_axis = 1> (y)", False),
        ("z = ConcatFromSequence <axis = 1> (y)", True),
        ("a = ConcatFromSequence <axis = 0> (y) k = SequenceLength (y) m = CastLike (k, a) z = Add (a, m)", True),
    ],
)
def test_rows_are_stacked_where_that_is_the_same(text: str, operators: bool) -> None:
    """A sequence with another reader, and rows along another axis, stay."""
    head = '<ir_version: 10, opset_import: ["": 20]> g (float[1, 2] x, int64 n) => (float[a, b] z)'
    made = onnx.parser.parse_model(f"{head} {{ s = SequenceEmpty () {BODY} {text} }}")
    if "new_axis" in text:
        made.graph.output[0].type.tensor_type.shape.dim.add(dim_param="c")
    network = d5.Network.from_onnx(made)
    assert ("ConcatFromSequence" in [node.op_type for node in network.nodes]) == operators
    feed = {"x": np.array([[1, 2]], np.float32), "n": np.array(3)}
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, feed)[0]
    found = to_numpy(d5.framework("reference").executor(network).inference(feed)["z"])
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


def test_openvino_refuses_embedding_bag_by_name() -> None:
    """It reads wherever an index inside a loop leads."""
    module, given = Bag("sum", None, False).eval(), (ROWS, torch.tensor([0, 3]))
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, given, file, dynamo=False, opset_version=17)
    network = d5.Network.from_onnx(onnx.ModelProto.FromString(file.getvalue()))
    with pytest.raises(d5.Unsupported, match=r"\(Gather\) in it: an index outside .*remedy: framework 'onnxruntime'"):
        d5.framework("openvino").executor(network)
