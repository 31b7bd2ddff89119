"""The recorders of Lightning, Transformers, Keras and JAX, with the real libraries and tiny models."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.audit.folders import audit
from deep5.core.errors import UsageError
from deep5.results.result import Result

GOALS = {
    "throughput": ">= 1",
    "step_latency": None,
    "training_loss": "< 5",
    "test_loss": None,
    "test_accuracy": ">= 0",
    "wall_clock_time": None,
}


def x_and_y(count: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    return draws.normal(size=(count, 8)).astype(np.float32), draws.integers(0, 3, count)


def check(result: Result, framework: str, sizes: list[int], epochs: int, losses: int) -> None:
    """The result of a whole training."""
    report = audit([result.folder])
    assert result.accepted, (result.reasons, result.document["warnings"])
    assert report, report.findings
    samples = result.samples()
    assert [s.value for s in samples["batch_size"]] == sizes * epochs
    assert [s.epoch for s in samples["test_accuracy"]] == list(range(1, epochs + 1))
    assert len(samples["training_loss"]) == losses
    assert result.document["framework"]["name"] == framework
    assert result.document["framework"]["device"] == "cpu"
    assert result.document["threads"]["framework"] >= 1
    assert not [said for said in result.document["warnings"] if "other programs" not in said]


@pytest.fixture
def torch_net() -> Iterator[Any]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def lightning_fit(net: Any, out: Path, *, fail: bool = False) -> Any:
    lightning = pytest.importorskip("lightning")
    import torch

    from deep5.frameworks.pytorch import LightningRecorder

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Any:
            if fail and index == 2:
                raise ValueError("a broken batch")
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            logits = self.net(batch[0])
            self.log("val_loss", torch.nn.functional.cross_entropy(logits, batch[1]))
            self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, x_and_y(40)))
    recorder = LightningRecorder("lightning", GOALS, out=out, quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, about workers and intervals
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", callbacks=[recorder], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
        )  # fmt: skip
        loader = torch.utils.data.DataLoader(data, 16)
        try:
            trainer.fit(Module(), loader, torch.utils.data.DataLoader(data, 20))
        except ValueError:
            assert fail
    return recorder


def test_lightning(torch_net: Any, tmp_path: Path) -> None:
    recorder = lightning_fit(torch_net, tmp_path)
    check(recorder.result, "pytorch", [16, 16, 8], 2, 6)
    assert recorder.result.document["recorded"]["loop"].startswith("Lightning ")
    # The loss is that of the batch, not its share of the accumulated gradient.
    assert 0.8 < recorder.result.metric("training_loss") < 1.6


def test_a_lightning_training_that_fails(torch_net: Any, tmp_path: Path) -> None:
    result = lightning_fit(torch_net, tmp_path, fail=True).result
    assert result.status == "failed"
    assert "a broken batch" in result.reasons[0]
    assert len(result.samples()["time[step]"]) == 2
    assert audit([result.folder]), audit([result.folder]).findings


@pytest.fixture
def trainer_of(torch_net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch_net

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            logits = self.net(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    x, y = x_and_y(40)
    data = [{"x": torch.from_numpy(row), "labels": int(label)} for row, label in zip(x, y, strict=True)]

    def make(**options: Any) -> Any:
        from deep5.frameworks.pytorch import TransformersRecorder

        recorder = TransformersRecorder("transformers", GOALS, out=tmp_path / "results", quiet=True)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), num_train_epochs=2, per_device_train_batch_size=16, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, **options,
        )  # fmt: skip
        trainer = transformers.Trainer(
            Model(), arguments, train_dataset=data, eval_dataset=data[:20], callbacks=[recorder],
            compute_metrics=lambda found: {"accuracy": float((found[0].argmax(1) == found[1]).mean())},
        )  # fmt: skip
        return trainer, recorder

    return make


@pytest.mark.parametrize(
    ("options", "sizes", "losses"),
    [
        ({"eval_strategy": "epoch", "logging_steps": 1}, [16, 16, 8], 6),
        ({"eval_strategy": "epoch", "logging_strategy": "epoch"}, [16, 16, 8], 2),
        ({"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2, "gradient_accumulation_steps": 2}, [32, 8], 2),
    ],
)
def test_transformers(
    trainer_of: Any, options: dict[str, Any], sizes: list[int], losses: int, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, recorder = trainer_of(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, about pinned memory
        trainer.train()
        trainer.evaluate()  # not part of the training
    check(recorder.result, "pytorch", sizes, 2, losses)
    assert recorder.result.document["recorded"]["loop"].startswith("Transformers ")


@pytest.mark.parametrize("built", [True, False], ids=["built", "built by its first step"])
def test_keras(tmp_path: Path, built: bool) -> None:
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    from deep5.frameworks.tensorflow import KerasRecorder

    keras.utils.set_random_seed(0)
    before = [keras.Input((8,))] if built else []
    model = keras.Sequential([*before, keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, metrics=["accuracy"])
    x, y = x_and_y(40)
    recorder = KerasRecorder("keras", GOALS, samples=40, batch_size=16, out=tmp_path, quiet=True)
    shown = model.fit(
        x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x[:20], y[:20]), callbacks=[recorder]
    ).history
    check(recorder.result, "tensorflow", [16, 16, 8], 2, 2)
    assert recorder.result.metric("training_loss") == pytest.approx(shown["loss"][-1])
    assert recorder.result.metric("test_loss") == pytest.approx(shown["val_loss"][-1])
    assert recorder.result.metric("test_accuracy") == pytest.approx(100 * shown["val_accuracy"][-1])
    with pytest.raises(UsageError, match="64 samples in batches of 16 are 4 batches, and Keras makes 3"):
        model.fit(x, y, batch_size=16, verbose=0, callbacks=[KerasRecorder("x", samples=64, batch_size=16)])
    with pytest.raises(UsageError, match="got samples=0; allowed: an integer of at least 1"):
        KerasRecorder("x", samples=0, batch_size=16)


_KERAS = """
import sys
import keras, numpy as np
from deep5.frameworks.tensorflow import KerasRecorder
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
model.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = np.ones((40, 8), np.float32), np.zeros(40, np.int32)
goals = {"throughput": None, "step_latency": None, "training_loss": None}
recorder = KerasRecorder("keras", goals, samples=40, batch_size=16, out=sys.argv[1], quiet=True)
for _ in range(2):
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[recorder])
    print(recorder.result.document["framework"]["name"], recorder.result.document["framework"]["device"])
    print([said for said in recorder.result.document["warnings"] if "other programs" not in said])
"""


@pytest.mark.slow
def test_keras_on_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("keras")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _KERAS, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["jax cpu", "[]"] * 2


def test_a_plain_jax_loop(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    from deep5.frameworks.jax import recorded_step

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        return -jnp.mean(jax.nn.log_softmax(x @ weights)[jnp.arange(len(y)), y])

    @jax.jit
    def update(weights: Any, batch: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(weights, *batch)
        return weights - 0.1 * gradient, loss

    x, y = x_and_y(40)
    weights = jnp.zeros((8, 3))
    with d5.record("jax", GOALS, out=tmp_path, quiet=True) as run:
        step = recorded_step(update, run)
        for _ in range(2):
            with run.epoch():
                for begin in range(0, 40, 16):
                    weights, _loss = step(weights, (x[begin : begin + 16], y[begin : begin + 16]))
                with run.evaluation():
                    hits = (x @ weights).argmax(1) == y
                    run.log(loss=loss_of(weights, x, y), accuracy=100 * hits.mean())
    check(run.result, "jax", [16, 16, 8], 2, 6)
    with d5.record("wrong", out=tmp_path, quiet=True) as run, run.epoch():
        with pytest.raises(UsageError, match="no array with a first dimension"):
            recorded_step(update, run)(weights, 3)
        with run.step(batch_size=1):
            pass


def test_losses_of_torch_are_read_as_they_were(torch_net: Any, tmp_path: Path) -> None:
    import torch

    total = torch.zeros(())
    with d5.record("in_place", {"training_loss": None}, out=tmp_path, quiet=True) as run, run.epoch():
        for _ in range(3):
            with run.step(batch_size=1):
                total += 1
                run.log(loss=total)
                run.wait(total, {"all": [total, 1.0]})
        with pytest.raises(UsageError, match=r"got the loss .* of shape \(2,\); allowed: one number"):
            run.log(loss=torch.ones(2))
    assert [s.value for s in run.result.samples()["training_loss"]] == [1, 2, 3]


_WORKERS = """
import sys, torch, deep5 as d5

class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        if sys.argv[2] == "record":
            with run.region("item"): pass
        return torch.ones(2)

with d5.record("workers", out=sys.argv[1], quiet=True) as run, run.epoch():
    for batch in torch.utils.data.DataLoader(Data(), 4, num_workers=1, multiprocessing_context="fork"):
        with run.step(batch_size=len(batch)):
            run.log(loss=batch.sum())
"""


@pytest.mark.parametrize("what", ["load", "record"])
def test_workers_of_a_data_loader(what: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _WORKERS, str(tmp_path), what],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    (folder,) = tmp_path.iterdir()
    if what == "load":
        assert done.returncode == 0, done.stderr
        assert d5.results.load(folder)["status"].tolist() == ["success"]
    else:
        assert "this is its child" in done.stderr
        assert "remedy: record around what workers deliver" in done.stderr


def test_recorders_load_no_library_before_they_are_used() -> None:
    code = (
        "import sys, deep5, deep5.frameworks.pytorch, deep5.frameworks.tensorflow, deep5.frameworks.jax\n"
        "deep5.record('x')\n"
        "print([name for name in ('torch', 'tensorflow', 'jax', 'lightning', 'transformers', 'keras') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
