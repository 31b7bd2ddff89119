"""Perplexity and bits per byte: as their formulas, PyTorch and torchmetrics give them, for any batch size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import GoalError, ShapeError, UnknownName, UsageError
from deep5.core.metric import Metric, parse_goal
from deep5.training.dataset import ArrayDataset
from deep5.training.scores import negative_log_likelihood

VOCABULARY, LENGTH = 7, 5


def table(ignored: int | None = None, dtype: str = "float32") -> Any:
    """A bigram model: a row of logits for each token."""
    build = d5.NetworkBuilder("bigram", dtype=dtype, seed=3)
    tokens, label = build.input("input", ("N", LENGTH), "int64"), build.input("label", ("N", LENGTH), "int64")
    rows = build.parameter("table", (VOCABULARY, VOCABULARY), lambda rng, shape: 2 * rng.normal(size=shape))
    logits = build.op("Gather", rows, tokens, axis=0)
    by_class = build.op("Transpose", logits, perm=[0, 2, 1])
    settings = {} if ignored is None else {"ignore_index": ignored}
    loss = build.op("SoftmaxCrossEntropyLoss", by_class, label, reduction="mean", **settings)
    return build.network({"logits": logits, "loss": loss})


class Sized(ArrayDataset):
    """Tokens with a number of bytes each."""

    token_bytes = np.array([1, 1, 2, 3, 1, 4, -1])


def samples(count: int = 11, *, most: int = 6) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    return {name: draw.integers(0, most, (count, LENGTH)) for name in ("input", "label")}


def trained(data: Any, *metrics: Metric, network: Any = None, batch: int = 4, framework: str = "reference") -> Any:
    """One epoch at a learning rate of 0, which leaves the table as it is; the executor and the metrics' observers."""
    executor = d5.framework(framework).executor(network or table())
    trainer = d5.Trainer(executor, d5.SGD(0.0), d5.OrderedSampler(data, 4), d5.OrderedSampler(data, batch))
    observers = [metric.observer() for metric in metrics]
    trainer.train(1, observers)
    return executor, observers


def summed(executor: Any, arrays: dict[str, np.ndarray], ignored: int | None = None) -> tuple[float, int, int]:
    """Nats, tokens and bytes, one token at a time, in Python's floats."""
    rows = d5.to_numpy(executor.state_dict()["table"]).astype(np.float64)
    nats, tokens, size = 0.0, 0, 0
    for token, label in zip(arrays["input"].reshape(-1), arrays["label"].reshape(-1), strict=True):
        if label == ignored:
            continue
        total = math.fsum(math.exp(value) for value in rows[token])
        nats -= math.log(math.exp(rows[token][label]) / total)
        tokens, size = tokens + 1, size + int(Sized.token_bytes[label])
    return nats, tokens, size


@pytest.mark.parametrize("batch", [1, 4, 11])
@pytest.mark.parametrize("ignored", [None, 2])
def test_both_are_as_their_formulas(batch: int, ignored: int | None) -> None:
    arrays = samples()
    data = Sized(arrays)
    executor, (perplexity, bits) = trained(data, d5.Perplexity(), d5.BitsPerByte(), network=table(ignored), batch=batch)
    nats, tokens, size = summed(executor, arrays, ignored)
    # The same sums in float64, in another order.
    assert perplexity.value() == pytest.approx(math.exp(nats / tokens), rel=1e-12)
    assert bits.value() == pytest.approx(nats / math.log(2) / size, rel=1e-12)
    assert [sample.epoch for sample in perplexity.samples()] == [1]


@pytest.mark.parametrize("ignored", [None, 2])
def test_perplexity_is_that_of_torch_and_torchmetrics(ignored: int | None) -> None:
    import torch
    from torchmetrics.text import Perplexity as Theirs

    arrays = samples()
    executor, (perplexity,) = trained(Sized(arrays), d5.Perplexity(), network=table(ignored))
    logits = torch.tensor(d5.to_numpy(executor.inference(arrays)["logits"]), dtype=torch.float64)
    labels = torch.tensor(arrays["label"])
    theirs = Theirs(ignore_index=ignored).set_dtype(torch.float64)
    for half in (slice(0, 6), slice(6, None)):
        theirs.update(logits[half], labels[half])
    # torchmetrics keeps its sum in float32.
    assert perplexity.value() == pytest.approx(float(theirs.compute()), rel=1e-6)
    flat = torch.nn.functional.cross_entropy(
        logits.reshape(-1, VOCABULARY), labels.reshape(-1), ignore_index=-100 if ignored is None else ignored
    )
    # The same sums in float64, in another order.
    assert perplexity.value() == pytest.approx(math.exp(float(flat)), rel=1e-12)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax", "onnxruntime"])
def test_frameworks_agree(framework: str) -> None:
    arrays = samples()
    executor, (perplexity, bits) = trained(Sized(arrays), d5.Perplexity(), d5.BitsPerByte(), framework=framework)
    nats, tokens, size = summed(executor, arrays)
    # A gathered row of logits has the bits of the table.
    assert perplexity.value() == pytest.approx(math.exp(nats / tokens), rel=1e-12)
    assert bits.value() == pytest.approx(nats / math.log(2) / size, rel=1e-12)


def test_uniform_bytes_need_eight_bits(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("straße " * 30, encoding="utf-8")
    found = {}
    for tokens, vocabulary in (("bytes", 256), ("characters", 7), ("byte_pairs", 256)):
        size = {"vocabulary_size": 256} if tokens == "byte_pairs" else {}
        data = d5.datasets.text(str(path), tokens=tokens, length=LENGTH, **size)
        network = d5.networks.gpt(vocabulary=vocabulary, length=LENGTH, width=4, heads=1, layers=1, dropout=0.0)
        executor = d5.framework("reference").executor(network)
        state = executor.state_dict()
        executor.load_state_dict({**state, "embedding": np.zeros_like(state["embedding"])})
        trainer = d5.Trainer(executor, d5.SGD(0.0), d5.OrderedSampler(data.train, 4), d5.OrderedSampler(data.test, 4))
        observers = [d5.BitsPerByte().observer(), d5.Perplexity().observer()]
        trainer.train(1, observers)
        found[tokens] = [observer.value() for observer in observers]
        covered = int(data.test.token_bytes[data.test.batch(np.arange(len(data.test)))["label"]].sum())
        # Logits of 0 for each token: log2 of their number.
        total = math.log2(vocabulary) * len(data.test) * LENGTH
        assert found[tokens] == pytest.approx([total / covered, vocabulary], rel=1e-12)
    assert found["bytes"] == pytest.approx([8, 256], rel=1e-12)
    assert found["byte_pairs"] == found["bytes"]


def test_large_logits_and_many_rows() -> None:
    assert negative_log_likelihood(np.array([[1e4, 0.0]]), np.array([1])) == 1e4
    assert negative_log_likelihood(np.array([[1e4, 0.0]]), np.array([0])) == 0.0
    assert math.isnan(negative_log_likelihood(np.array([[np.nan, 0.0]]), np.array([1])))
    assert math.isnan(negative_log_likelihood(np.array([[np.inf, 0.0]]), np.array([1])))
    assert negative_log_likelihood(np.array([[-np.inf, 0.0]]), np.array([0])) == math.inf
    assert negative_log_likelihood(np.zeros((0, 3)), np.zeros(0, np.int64)) == 0.0
    # Several blocks of rows.
    scores = np.zeros((3000, 1000), np.float32)
    assert negative_log_likelihood(scores, np.arange(3000) % 1000) == pytest.approx(3000 * math.log(1000), rel=1e-12)
    with pytest.raises(ShapeError, match="remedy: class_rows"):
        negative_log_likelihood(np.zeros(3), np.zeros(3, np.int64))
    for label in (-100, 3):
        with pytest.raises(
            UsageError, match=rf"got the label {label} for logits of 3 classes; allowed: 0 to 2; remedy"
        ):
            negative_log_likelihood(np.zeros((1, 3)), np.array([label]))


def test_a_perplexity_too_large_for_a_float_is_infinite() -> None:
    observer = d5.Perplexity().observer()
    assert observer.score([1e6, 1.0]) == math.inf  # type: ignore[attr-defined]
    assert observer.score([0.0, 0.0]) is None  # type: ignore[attr-defined]


def test_unknown_tokens_have_no_bytes(tmp_path: Path) -> None:
    arrays = samples(most=7)
    with pytest.raises(UsageError, match=r"\d+ test tokens are unknown, and their bytes with them; .*byte_pairs"):
        trained(Sized(arrays), d5.BitsPerByte())
    # Unless the loss ignores them.
    _, (bits,) = trained(Sized(arrays), d5.BitsPerByte(), network=table(6))
    assert bits.value() > 0
    with pytest.raises(UsageError, match=r"tokens have no known number of bytes; .*remedy: the metric perplexity"):
        trained(ArrayDataset(arrays), d5.BitsPerByte())

    class Few(Sized):
        token_bytes = np.array([1, 1])

    with pytest.raises(
        UsageError, match=r"bits_per_byte: got the token \d; allowed: 0 to 1, the tokens of the data set"
    ):
        trained(Few(arrays), d5.BitsPerByte())


def test_without_test_samples_there_is_no_value() -> None:
    data = Sized(samples())
    executor = d5.framework("reference").executor(table())
    observers = [d5.Perplexity().observer(), d5.BitsPerByte().observer()]
    d5.Trainer(executor, d5.SGD(0.0), d5.OrderedSampler(data, 4)).train(1, observers)
    assert [observer.value() for observer in observers] == [None, None]


@pytest.mark.parametrize("metric", [d5.Perplexity, d5.BitsPerByte])
def test_names_that_the_network_lacks(metric: Any) -> None:
    for settings, message in (({"logits": "scores"}, "unknown output 'scores'"), ({"label": "x"}, "unknown input 'x'")):
        with pytest.raises(UnknownName, match=message):
            trained(Sized(samples()), metric(**settings))


def test_a_checkpoint_holds_sums_and_not_the_data_set() -> None:
    _, (bits,) = trained(Sized(samples()), d5.BitsPerByte())
    again = d5.BitsPerByte().observer()
    state = bits.state_dict()
    assert "_token_bytes" not in state
    again.load_state_dict(state)
    assert again.value() == bits.value()


def test_goals() -> None:
    assert parse_goal(d5.Perplexity(), "<= 4.5").met(4.5)
    assert not parse_goal(d5.BitsPerByte(), "<= 2 bit/B").met(math.nan)
    with pytest.raises(GoalError):
        parse_goal(d5.Perplexity(), "<= 0.5")
    with pytest.raises(GoalError):
        parse_goal(d5.BitsPerByte(), "<= -1")
