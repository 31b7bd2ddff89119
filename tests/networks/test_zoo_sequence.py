"""The recurrent encoder-decoder: its equations, what a position may see, padding, and its training everywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.errors import MissingDependency, UsageError
from deep5.networks import Network
from deep5.networks.zoo.sequence import attention_seq2seq

SIZES: dict[str, int] = {
    "source_vocabulary": 7,
    "target_vocabulary": 6,
    "source_length": 5,
    "target_length": 4,
    "width": 3,
}
SOURCE = np.array([[3, 1, 6, 2, 5], [4, 4, 0, 0, 0], [1, 0, 0, 0, 0]])
TARGET = np.array([[0, 2, 5, 3], [0, 4, 1, 1], [0, 3, 3, 1]])
LABEL = np.array([[2, 5, 3, 1], [4, 1, -1, -1], [3, 3, 1, -1]])
BATCH = {"source": SOURCE, "target": TARGET, "label": LABEL}


def made(dtype: str = "float64", **options: Any) -> Network:
    return attention_seq2seq(**SIZES, dtype=dtype, **{"seed": 1, **options})


def gru(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, h: np.ndarray) -> np.ndarray:
    """All states (steps, N, width), by Cho et al. with the reset gate after the product, in ONNX's order z, r, h."""
    states, n = [], len(r[0])
    for step in x:
        own, back = step @ w.T + b[: 3 * n], h @ r.T + b[3 * n :]
        z, reset = (1 / (1 + np.exp(-(own + back)[:, at : at + n])) for at in (0, n))
        h = (1 - z) * np.tanh(own[:, 2 * n :] + reset * back[:, 2 * n :]) + z * h
        states.append(h)
    return np.array(states)


def test_the_logits_are_the_equations() -> None:
    """Bahdanau et al., A.1.1 and A.2.2, and Luong et al., equations 5 to 8, in NumPy, in float64."""
    network = made()
    p = {name: network.initial(name) for name in network.parameter_specs}
    n = SIZES["width"]
    read = p["source.embedding"][SOURCE].swapaxes(0, 1)
    zero = np.zeros((3, n))
    weights = [[p[f"encoder.{part}"][way] for part in ("input_weight", "hidden_weight", "bias")] for way in (0, 1)]
    forward, backward = gru(read, *weights[0], zero), gru(read[::-1], *weights[1], zero)
    states = np.concatenate([forward, backward[::-1]], axis=-1).swapaxes(0, 1)
    begin = np.tanh(backward[-1] @ p["decoder.begin.weight"] + p["decoder.begin.bias"])
    known = p["target.embedding"][TARGET].swapaxes(0, 1)
    cell = [p[f"decoder.{part}"][0] for part in ("input_weight", "hidden_weight", "bias")]
    hidden = gru(known, *cell, begin).swapaxes(0, 1)
    scores = np.einsum("ntw,vw,nsv->nts", hidden, p["attention.weight"], states)
    shares = np.exp(scores) * (SOURCE != 0)[:, None]
    context = (shares / shares.sum(axis=-1, keepdims=True)) @ states
    joined = np.concatenate([context, hidden], axis=-1)
    logits = np.tanh(joined @ p["combined.weight"] + p["combined.bias"]) @ p["fc.weight"] + p["fc.bias"]
    log_prob = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    rows, columns = np.nonzero(LABEL >= 0)
    loss = -log_prob[rows, columns, LABEL[rows, columns]].mean()

    proto = network.to_onnx()
    onnx.checker.check_model(proto, full_check=True)
    found = ReferenceEvaluator(proto).run(["logits", "loss"], BATCH)
    # float64, some hundred operations on numbers of size one.
    np.testing.assert_allclose(found[0], logits, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found[1], loss, rtol=1e-12)


@pytest.mark.parametrize("framework", ["onnxruntime", "reference"])
def test_a_position_does_not_see_what_follows(framework: str) -> None:
    executor = d5.framework(framework).executor(made("float32"))
    before = d5.to_numpy(executor.inference(BATCH)["logits"]).copy()
    for position in range(SIZES["target_length"]):
        changed = TARGET.copy()
        changed[:, position] = (changed[:, position] + 1) % SIZES["target_vocabulary"]
        after = d5.to_numpy(executor.inference({**BATCH, "target": changed})["logits"])
        assert np.array_equal(before[:, :position], after[:, :position])
        assert not np.isclose(before[:, position], after[:, position]).all(axis=-1).any()


def test_padding_has_no_weight() -> None:
    """Weights of the attention are zero at padding and positive elsewhere; they add up to one."""
    network = made()
    name = next(node.outputs[0].name for node in network.nodes if node.op_type == "Softmax")
    (weights,) = ReferenceEvaluator(network.with_outputs([name]).to_onnx()).run([name], BATCH)
    assert weights.shape == (3, 4, 5)
    assert ((weights > 0) == (SOURCE != 0)[:, None]).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-14)  # five numbers are added


def test_parameters_and_initial_weights() -> None:
    width, out = 128, 41
    network = attention_seq2seq(width=width)
    gates = 3 * width * (2 * width) + 6 * width
    embeddings, attention = (27 + out) * width, 2 * width * width
    dense = (width * width + width) + (3 * width * width + width) + (width * out + out)
    assert sum(spec.size for spec in network.parameter_specs.values()) == embeddings + 3 * gates + attention + dense
    # 16,384 draws within 1 / sqrt(128), whose largest is within a thousandth of it but for once in 1e7 seeds.
    assert np.abs(network.initial("decoder.begin.weight")).max() == pytest.approx(width**-0.5, rel=1e-3)
    # 5,248 normal draws: relative standard error of the deviation 1 %; four of them.
    assert network.initial("target.embedding").std() == pytest.approx(1.0, rel=0.04)
    assert Network.from_onnx(network.to_onnx()).structure_hash() == network.structure_hash()
    assert attention_seq2seq(seed=0).weights_hash() != attention_seq2seq(seed=1).weights_hash()
    assert sum(node.op_type == "Dropout" for node in attention_seq2seq(dropout=0.1).nodes) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: attention_seq2seq(width=0), "got width = 0; allowed: an integer of at least 1"),
        (lambda: attention_seq2seq(target_length=2.5), "got target_length = 2.5; allowed: an integer"),  # type: ignore[arg-type]
        (lambda: attention_seq2seq(dropout=1.0), "got dropout = 1.0; allowed: a number from 0"),
        (lambda: attention_seq2seq(dtype="int8"), "unknown dtype 'int8' of a network; allowed: float32, float64"),
    ],
)
def test_bad_arguments(make: Callable[[], Network], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def losses(framework: str, dtype: str) -> list[float]:
    """The loss before each of a few steps; dropout masks are a function of the step."""
    executor = d5.framework(framework).executor(made(dtype, dropout=0.2), seed=0)
    step = executor.train_step(d5.SGD(0.1))
    return [float(d5.to_numpy(step(BATCH, d5.StepInfo(step=at, batch_size=3))["loss"])) for at in range(3)]


@cache
def right() -> list[float]:
    return losses("reference", "float64")


@pytest.mark.parametrize("framework", ["jax", "onnxruntime", "openvino", "pytorch", "tensorflow"])
def test_trains_with_equal_losses(framework: str) -> None:
    try:
        d5.framework(framework)
    except MissingDependency as error:
        pytest.skip(str(error))
    single = framework in ("onnxruntime", "openvino")
    found = losses(framework, "float32" if single else "float64")
    # Some hundred roundings of 1e-16 or 6e-8, propagated through two updates.
    np.testing.assert_allclose(found, right(), rtol=1e-4 if single else 1e-10)
    assert found[-1] < found[0]
