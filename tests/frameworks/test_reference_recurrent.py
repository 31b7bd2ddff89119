"""Recurrent layers of the reference compared with ONNX Runtime, and by invariances."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import deep5 as d5
from deep5.core.errors import ShapeError, Unsupported
from deep5.networks import Network

RNG = np.random.default_rng(29)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
COUNT = {"LSTM": 3, "GRU": 2, "RNN": 1}
ODD = ["Softsign", "ScaledTanh", "Affine", "HardSigmoid", "Elu", "LeakyRelu"]
STEPS, BATCH, FEATURES, HIDDEN = 5, 3, 2, 4


def feeds(op: str, directions: int, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    def normal(*shape: int) -> np.ndarray:
        return RNG.standard_normal(shape).astype(dtype)

    rows = GATES[op] * HIDDEN
    found = {
        "x": normal(STEPS, BATCH, FEATURES),
        "w": normal(directions, rows, FEATURES),
        "r": normal(directions, rows, HIDDEN),
        "b": normal(directions, 2 * rows),
        "lengths": np.array([5, 1, 3], np.int32),
        "h": normal(directions, BATCH, HIDDEN),
    }
    if op == "LSTM":
        found |= {"c": normal(directions, BATCH, HIDDEN), "p": normal(directions, 3 * HIDDEN)}
    return found


def model(op: str, given: dict[str, np.ndarray], **attributes: Any) -> onnx.ModelProto:
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    node = onnx.helper.make_node(op, list(given), outputs, hidden_size=HIDDEN, **attributes)
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in given.items()}
    inputs = [onnx.helper.make_tensor_value_info(name, kinds[name], value.shape) for name, value in given.items()]
    results = [onnx.helper.make_tensor_value_info(name, kinds["x"], [None] * (4 - (name != "y"))) for name in outputs]
    graph = onnx.helper.make_graph([node], "layer", inputs, results)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def reference(proto: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    executor = d5.framework("reference").executor(Network.from_onnx(proto))
    return [np.asarray(value) for value in executor.inference(given).values()]


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"clip": 0.25},
        {"activations": 0, "activation_alpha": [0.5, 1.5, 0.75], "activation_beta": [0.25, 0.5]},
        {"activations": 3},
        {"input_forget": 1},
        {"linear_before_reset": 1},
    ],
    ids=["plain", "clip", "activations 0", "activations 3", "coupled", "linear before reset"],
)
def test_against_onnxruntime(op: str, direction: str, more: dict[str, Any]) -> None:
    """Sequences that end early, with states, biases and peepholes."""
    if ("input_forget" in more and op != "LSTM") or ("linear_before_reset" in more and op != "GRU"):
        pytest.skip("an attribute of another layer")
    if "clip" in more and op == "LSTM":
        pytest.skip("ONNX Runtime does not clip the cell state where the last activation reads it; see below")
    directions = 2 if direction == "bidirectional" else 1
    given, options = feeds(op, directions), dict(more)
    if "activations" in more:
        chosen = ODD[more["activations"] :][: COUNT[op]]
        options["activations"] = chosen * directions
        for name, users in (
            ("activation_alpha", {"ScaledTanh", "Affine", "HardSigmoid", "Elu", "LeakyRelu"}),
            ("activation_beta", {"ScaledTanh", "Affine", "HardSigmoid"}),
        ):
            # ONNX Runtime requires one number per function; functions without a parameter get one that they ignore.
            options.pop(name, None)
            if more["activations"] == 0 and users.intersection(chosen):
                options[name] = [0.5] * (directions * len(users.intersection(chosen)))
    proto = model(op, given, direction=direction, **options)
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    for got, expected in zip(reference(proto, given), want, strict=True):
        # Five steps, each of ten float32 roundings.
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_every_activation_of_an_lstm_is_clipped() -> None:
    given = feeds("LSTM", 1, np.float64)
    x, w, r, b, _, h, c, p = given.values()
    i, o, f, g = np.split(x[0] @ w[0].T + h[0] @ r[0].T + b[0, :16] + b[0, 16:], 4, axis=1)

    def logistic(value: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-np.clip(value, -0.25, 0.25)))

    new = logistic(f + p[0, 8:] * c[0]) * c[0] + logistic(i + p[0, :4] * c[0]) * np.tanh(np.clip(g, -0.25, 0.25))
    want = logistic(o + p[0, 4:8] * new) * np.tanh(np.clip(new, -0.25, 0.25))
    # The attribute is a float32, which represents one quarter exactly.
    np.testing.assert_allclose(reference(model("LSTM", given, clip=0.25), given)[0][0, 0], want, rtol=1e-12)


@pytest.mark.parametrize("op", GATES)
def test_the_batch_in_front(op: str) -> None:
    given = feeds(op, 2, np.float64)
    turned = {name: value.swapaxes(0, 1) if name in ("x", "h", "c") else value for name, value in given.items()}
    plain = reference(model(op, given, direction="bidirectional"), given)
    first = reference(model(op, turned, direction="bidirectional", layout=1), turned)
    np.testing.assert_array_equal(first[0], plain[0].transpose(2, 0, 1, 3))
    for got, want in zip(first[1:], plain[1:], strict=True):
        np.testing.assert_array_equal(got, want.swapaxes(0, 1))


def test_what_does_not_fit_is_refused() -> None:
    given = feeds("RNN", 1)
    with pytest.raises(ShapeError, match=r"sequence_lens holds \[5, 6, 3\]; allowed: 0 to 5"):
        reference(model("RNN", given), {**given, "lengths": np.array([5, 6, 3], np.int32)})
    with pytest.raises(Unsupported, match="got activations cosine; allowed: 1 of affine"):
        reference(model("RNN", given, activations=["Cosine"]), given)
    with pytest.raises(Unsupported, match="got direction='up'; allowed: forward, reverse, bidirectional"):
        reference(model("RNN", given, direction="up"), given)
