"""The sides of the trainer recipes: the trainer, and the same work hand-written.

Each function returns a function without arguments that does `steps` steps and returns when they are finished. The
candidates use deep5 as a user does; the baselines are what a user would write without deep5.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import numpy as np

import deep5 as d5
from deep5.results.mllog import MLLog
from deep5.training.dataset import ArrayDataset
from deep5.training.datasets.uci_digits import digits

__all__ = ["bare_loop", "lenet_by_hand", "lenet_by_trainer", "logging_trainer", "noop_trainer"]

Work = Callable[[], object]


class NoOpExecutor:
    """An executor that does nothing, or waits for a given time: the rest is the overhead of the trainer.

    It has the parts of `GraphExecutor` that the trainer uses when the optimizer owns the step.
    """

    def __init__(self, busy_us: float = 0.0) -> None:
        self.network: Any = SimpleNamespace(outputs={"loss": None, "logits": None}, inputs={"label": None})
        self._outputs = {"loss": np.float32(0.0)}
        self._busy_ns = int(busy_us * 1000)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def work(self) -> dict[str, Any]:
        """Wait, if requested, in a busy loop, which the scheduler does not treat as idle."""
        if self._busy_ns:
            end = perf_counter_ns() + self._busy_ns
            while perf_counter_ns() < end:
                pass
        return self._outputs


class NoOpOptimizer:
    """An optimizer whose step is the executor's."""

    def bind(self, executor: Any) -> None:
        """Keep a reference to the executor's work."""
        self._work = executor.work

    def step(self, inputs: Mapping[str, Any], info: d5.StepInfo) -> Mapping[str, Any]:
        """Call the executor's work."""
        outputs: Mapping[str, Any] = self._work()
        return outputs

    def state_dict(self) -> dict[str, Any]:
        """There is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is no state."""


class PreparedSampler(d5.OrderedSampler):
    """Prepared batches: other recipes measure the gathering of samples."""

    def __init__(self, steps: int) -> None:
        super().__init__(ArrayDataset({"input": np.zeros(steps), "label": np.zeros(steps)}), 1)
        self._batches = [(np.arange(64), {"input": np.zeros(1), "label": np.zeros(1)}) for _ in range(steps)]

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The same batches every epoch."""
        return iter(self._batches[start:]) if start else iter(self._batches)


def _metrics() -> list[d5.Event]:
    metrics = (d5.TrainingLoss(), d5.WallClockTime(), d5.Throughput(), d5.StepLatency(), d5.PeakMemory())
    return [metric.observer() for metric in metrics]


def noop_trainer(*, steps: int) -> Work:
    """The trainer with all training metrics, on an executor that does nothing."""
    executor: Any = NoOpExecutor()
    trainer = d5.Trainer(executor, NoOpOptimizer(), PreparedSampler(steps))
    return lambda: trainer.train(1, _metrics())


def logging_trainer(*, steps: int, busy_us: float) -> Work:
    """The same with a progress bar on a terminal, CSV log and MLPerf log.

    Each step is busy for a given time: an epoch that ends before the bar is first drawn would not show the cost of
    drawing.
    """
    from rich.console import Console

    executor: Any = NoOpExecutor(busy_us)
    trainer = d5.Trainer(executor, NoOpOptimizer(), PreparedSampler(steps))
    console = Console(file=io.StringIO(), force_terminal=True, width=100)

    def work() -> None:
        with (
            tempfile.TemporaryDirectory() as folder,
            (Path(folder) / "events.mllog").open("a", buffering=1, encoding="utf-8") as file,
        ):
            log = MLLog(lambda line: print(line, file=file))
            logger = d5.CSVLogger(f"{folder}/steps.csv")
            trainer.train(1, [*_metrics(), d5.ProgressBar(console=console), logger, log])

    return work


def bare_loop(*, steps: int, busy_us: float = 0.0) -> Work:
    """The minimal loop: fetch a batch, call the step."""
    executor, optimizer, sampler = NoOpExecutor(busy_us), NoOpOptimizer(), PreparedSampler(steps)
    optimizer.bind(executor)
    info = d5.StepInfo()

    def work() -> None:
        step = optimizer.step
        for _, inputs in sampler.batches(0):
            step(inputs, info)

    return work


def _samples(steps: int, batch_size: int) -> dict[str, np.ndarray]:
    """The digits for `steps` steps, repeated if there are fewer."""
    train = digits().train
    found: dict[str, np.ndarray] = train.batch(np.arange(steps * batch_size) % len(train))
    return found


def lenet_by_trainer(*, steps: int, seed: int, threads: int, batch_size: int, optimizer: Any) -> Work:
    """An epoch of LeNet on the digits in the trainer, on PyTorch.

    Args:
        steps: Batches per epoch.
        seed: Seed of weights and order.
        threads: Threads of PyTorch.
        batch_size: Samples per batch.
        optimizer: Creates an update rule or a step optimizer.
    """
    framework = d5.framework("pytorch")
    framework.set_threads(threads)
    executor = framework.executor(d5.networks.lenet(seed=seed))
    sampler = d5.ShuffleSampler(ArrayDataset(_samples(steps, batch_size)), batch_size, seed=seed)
    trainer = d5.Trainer(executor, optimizer(), sampler, seed=seed)
    return lambda: trainer.train(1)


def lenet_by_hand(*, steps: int, seed: int, threads: int, batch_size: int, optimizer: str) -> Work:
    """The same epoch in idiomatic PyTorch: a module, `torch.optim` with `fused=True`, a shuffled epoch.

    Args:
        steps: Batches per epoch.
        seed: Seed of weights and order.
        threads: Threads of PyTorch.
        batch_size: Samples per batch.
        optimizer: `"adam"`, `"momentum"` or `"sgd"`.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    from deep5.recipes.overhead.optimizers import fused

    torch.set_num_threads(threads)
    torch.manual_seed(seed)

    class LeNet(nn.Module):  # type: ignore[misc]  # torch is not followed
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
            self.conv2 = nn.Conv2d(6, 16, 5)
            self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

        def forward(self, x: Any) -> Any:
            x = functional.avg_pool2d(torch.tanh(self.conv1(x)), 2)
            x = functional.avg_pool2d(torch.tanh(self.conv2(x)), 2)
            x = torch.flatten(x, 1)
            return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))

    model = LeNet()
    update = fused(optimizer, list(model.parameters()))
    arrays = _samples(steps, batch_size)
    images, labels = torch.from_numpy(arrays["input"]), torch.from_numpy(arrays["label"])

    def work() -> None:
        model.train()
        for indices in torch.randperm(len(images)).split(batch_size):
            update.zero_grad()
            loss = functional.cross_entropy(model(images[indices]), labels[indices])
            loss.backward()
            update.step()

    return work
