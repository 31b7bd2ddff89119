"""What deep5 adds around a step: sampling, transforms, loggers, schedules, compression, counting of communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from registry import register

_STEPS = 2000


def _each(batches: Callable[[], Any]) -> Callable[[], object]:
    def epoch() -> None:
        for _ in batches():
            pass

    return epoch


class _Stream:
    """Batches that cost nothing."""

    def steps(self, epoch: int) -> int:
        return _STEPS

    def order_hash(self, epochs: int) -> None:
        return None

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        return iter([(np.arange(2), {})] * (_STEPS - start))


class _Still:
    """An executor and an optimizer whose step takes no time."""

    def __init__(self) -> None:
        self.network = SimpleNamespace(outputs={"loss": None}, inputs={})

    def synchronize(self) -> None:
        pass

    def bind(self, executor: Any) -> None:
        pass

    def step(self, inputs: Any, info: Any) -> Any:
        return {"loss": np.float32(0.25)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


@register("data.shuffled_batches_of_64", group="core", unit="batch", per_call=200)
def _sampling(folder: Path) -> Callable[[], object]:
    import deep5 as d5
    from deep5.training.dataset import ArrayDataset

    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 255, (12_800, 3, 32, 32)).astype("uint8")
    sampler = d5.ShuffleSampler(ArrayDataset({"input": pixels, "label": draw.integers(0, 10, 12_800)}), 64)
    return _each(lambda: sampler.batches(0))


@register("data.sharded_batches", group="core", unit="batch", per_call=500)
def _sharding(folder: Path) -> Callable[[], object]:
    import deep5 as d5
    from deep5.training.dataset import ArrayDataset

    data = ArrayDataset({"input": np.zeros((4000, 4), np.float32), "label": np.zeros(4000, np.int64)})
    sharded = d5.ShardedSampler(d5.OrderedSampler(data, 8), 1, 4)
    return _each(lambda: sharded.batches(0))


@register("data.augmentation_of_cifar10", group="core", unit="batch")
def _augmentation(folder: Path) -> Callable[[], object]:
    import deep5 as d5

    pixels, ids = np.random.default_rng(0).integers(0, 256, (128, 3, 32, 32), np.uint8), np.arange(128)
    means, deviations = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
    normalise = getattr(d5, "Normalise", None) or d5.Normalize
    pipeline = [d5.RandomCrop(32, padding=4), d5.Flip(), normalise(means, deviations)]

    def run() -> None:
        batch: Any = {"input": pixels}
        for transform in pipeline:
            batch = transform(batch, ids, 0)

    return run


@register("data.schedule_cosine", group="core", unit="step", per_call=100)
def _schedule(folder: Path) -> Callable[[], object]:
    import deep5 as d5

    rule = d5.Momentum()
    sampler = SimpleNamespace(steps=lambda epoch: 100, batch_size=32)
    trainer: Any = SimpleNamespace(
        step=0, epoch=0, epochs=10, accumulate=1, optimizer=SimpleNamespace(rule=rule), train_sampler=sampler
    )
    event = d5.Scheduled({"lr": d5.WarmUp(d5.LinearScaling(d5.Cosine(0.1)), epochs=7)})
    infos = [d5.StepInfo(500 + step, 5, 32) for step in range(100)]
    event.before_training(trainer)

    def epoch() -> None:
        for info in infos:
            event.before_step(trainer, info)

    return epoch


def _logged(event: Any) -> Callable[[], object]:
    import deep5 as d5

    def epoch() -> None:
        still: Any = _Still()
        d5.Trainer(still, still, _Stream()).train(1, [event])  # type: ignore[arg-type]

    return epoch


@register("data.trainer_alone", group="core", unit="step", per_call=_STEPS)
def _trainer(folder: Path) -> Callable[[], object]:
    import deep5 as d5

    return _logged(d5.Event())


@register("data.csv_logger", group="core", unit="step", per_call=_STEPS)
def _csv(folder: Path) -> Callable[[], object]:
    import deep5 as d5

    return _logged(d5.CSVLogger(folder / "log.csv"))


@register("data.tensorboard_logger", group="core", unit="step", per_call=_STEPS)
def _board(folder: Path) -> Callable[[], object]:
    import deep5 as d5

    return _logged(d5.TensorBoardLogger(folder / "board"))


def _compressed(name: str, **options: Any) -> None:
    @register(f"data.compression_{name}", group="core", unit="million elements")
    def setup(folder: Path) -> Callable[[], object]:
        from deep5.core.plugins import load

        given = np.random.default_rng(0).standard_normal(10**6).astype(np.float32)
        bound, out = load("compressors", name)(**options).bound(0), np.empty_like(given)

        def there_and_back() -> None:
            bound.decode(bound.encode(given, key="a", step=0), out)

        return there_and_back


_compressed("top_k", ratio=0.01)
_compressed("qsgd")
_compressed("one_bit")
_compressed("half_precision")


@register("data.counted_collective", group="core")
def _counted(folder: Path) -> Callable[[], object]:
    from deep5.distributed.communicators.threads import run_in_threads

    (communicator,) = run_in_threads(1, lambda own: own)
    buffer = np.ones(2)
    communicator.count_hidden()
    return lambda: communicator.all_reduce(buffer)


def _loader(kind: str) -> None:
    @register(f"{kind}.loader", group=kind, unit="batch", per_call=20)
    def setup(folder: Path) -> Callable[[], object]:
        import deep5 as d5

        pixels = np.random.default_rng(0).random((2560, 3, 32, 32), np.float32)
        if kind == "pytorch":
            import torch
            from torch.utils.data import DataLoader, TensorDataset

            loader: Any = DataLoader(TensorDataset(torch.from_numpy(pixels), torch.arange(2560)), 128, shuffle=True)
            source: Any = d5.from_dataloader(loader)
        else:
            import tensorflow as tf

            source = d5.from_tf_data(tf.data.Dataset.from_tensor_slices((pixels, np.arange(2560))).batch(128))
        return _each(lambda: source.batches(0))


_loader("pytorch")
_loader("tensorflow")
