"""Prefetching: the same batches in the same order, prepared in advance; no thread outlives its purpose."""

from __future__ import annotations

import _thread
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import Deep5Error, UsageError
from deep5.training import prefetch
from deep5.training.dataset import ArrayDataset

# The longest wait in these tests.
LIMIT_S = 20.0


class Watched(ArrayDataset):
    """Records the requested batches; may be slow, fail, or wait until it is released."""

    def __init__(self, count: int = 40, *, slow_s: float = 0.0, fails_at: int | None = None) -> None:
        super().__init__(
            {"input": np.arange(count), "pixels": np.arange(count * 12).astype(np.uint8).reshape(count, 1, 3, 4)}
        )
        self.asked: list[list[int]] = []
        self.made = 0
        self.slow_s, self.fails_at = slow_s, fails_at
        self.go = threading.Event()
        self.go.set()

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        self.asked.append(ids.tolist())
        self.go.wait(LIMIT_S)
        time.sleep(self.slow_s)
        if self.fails_at in ids:
            raise ValueError(f"sample {self.fails_at} cannot be decoded")
        batch = super().batch(ids)
        self.made += 1
        return batch


class Reversed(d5.OrderedSampler):
    """Overrides `batches`: they can only come one after the other."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        yield from reversed(list(super().batches(epoch)))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert workers() == []


def workers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("deep5-prefetch")]


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.002)


def content(source: Any, epoch: int, start: int = 0) -> list[Any]:
    return [
        (ids.tolist(), {name: array.tolist() for name, array in inputs.items()})
        for ids, inputs in source.batches(epoch, start)
    ]


@pytest.mark.parametrize(("depth", "count"), [(1, 1), (2, 1), (4, 3), (50, 8)])
def test_the_same_batches_in_the_same_order(depth: int, count: int) -> None:
    transforms = [d5.RandomCrop((3, 4), padding=1, part="pixels"), d5.Flip(part="pixels")]
    plain = d5.ShuffleSampler(Watched(), 7, seed=5, transforms=transforms)
    ahead = d5.Prefetched(plain, depth, count)
    for epoch in (0, 3):
        assert content(ahead, epoch) == content(plain, epoch)
        assert content(ahead, epoch, 4) == content(plain, epoch)[4:]
    assert content(ahead, 0, 6) == []
    assert (ahead.steps(2), len(ahead), ahead.order_hash(3)) == (6, 6, plain.order_hash(3))
    assert (ahead.batch_size, ahead.seed, ahead.dataset) == (7, 5, plain.dataset)
    assert isinstance(ahead, d5.BatchSource)
    assert ahead.taken == 2 * (6 + 2)


def test_uneven_speed_changes_no_order() -> None:
    class Uneven(Watched):
        def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
            time.sleep(0.01 if int(ids[0]) % 3 == 0 else 0.0)
            return super().batch(ids)

    plain = d5.OrderedSampler(Uneven(), 2)
    assert content(d5.Prefetched(plain, 6, 5), 0) == content(plain, 0)


def test_any_source_goes_with_one_worker() -> None:
    plain = Reversed(Watched(), 9)
    assert content(d5.Prefetched(plain), 0) == content(plain, 0)
    with pytest.raises(UsageError, match=r"Prefetched: got workers=2 for a Reversed, which gives its batches in"):
        d5.Prefetched(plain, 2, 2)


def test_no_more_than_its_depth_is_made_ahead() -> None:
    data = Watched()
    batches = d5.Prefetched(d5.OrderedSampler(data, 2), 3, 2).batches(0)
    assert (data.asked, workers()) == ([], [])  # nothing before the first request
    next(batches)
    until(lambda: len(data.asked) == 4)
    time.sleep(0.05)
    assert len(data.asked) == 4  # one has been taken, three are ready
    next(batches)
    until(lambda: len(data.asked) == 5)
    batches.close()  # type: ignore[attr-defined]


def test_waiting_is_measured() -> None:
    data = Watched(slow_s=0.3)
    ahead = d5.Prefetched(d5.OrderedSampler(data, 10), 1)
    batches = ahead.batches(0)
    begin = time.perf_counter_ns()
    next(batches)
    took = time.perf_counter_ns() - begin
    assert ahead.stalls == 1
    # The thread may have started a little before the wait.
    assert 0.1e9 < ahead.stall_ns <= took
    before = ahead.stall_ns
    until(lambda: data.made == 2)
    time.sleep(0.2)  # from its creation until it is delivered
    next(batches)
    assert (ahead.stalls, ahead.stall_ns, ahead.taken) == (1, before, 2)
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_is_raised_where_its_batch_is_asked_for(count: int) -> None:
    ahead = d5.Prefetched(d5.OrderedSampler(Watched(fails_at=25), 10), 4, count)
    batches = ahead.batches(0)
    assert [next(batches)[0][0] for _ in range(2)] == [0, 10]
    with pytest.raises(ValueError, match="sample 25 cannot be decoded") as caught:
        next(batches)
    assert "batch" in {entry.name for entry in caught.traceback}  # the original location, in the thread
    del caught
    assert workers() == []
    with pytest.raises(StopIteration):
        next(batches)


def test_an_error_of_the_order_reaches_the_consumer() -> None:
    class Broken(d5.OrderedSampler):
        def order(self, epoch: int) -> np.ndarray:
            raise Deep5Error("no order today")

    for count in (1, 2):
        with pytest.raises(Deep5Error, match="no order today"):
            list(d5.Prefetched(Broken(Watched(), 4), 2, count).batches(0))


def test_a_data_set_that_ends_early_is_no_end_of_the_epoch() -> None:
    class Ending(Watched):
        def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
            raise StopIteration

    for count in (1, 2):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(d5.Prefetched(d5.OrderedSampler(Ending(), 4), 2, count).batches(0))


@pytest.mark.parametrize("count", [1, 3])
def test_an_abandoned_iterator_ends_its_threads(count: int) -> None:
    ahead = d5.Prefetched(d5.OrderedSampler(Watched(), 2), 3, count)
    batches = ahead.batches(0)
    next(batches)
    assert len(workers()) == count
    del batches
    gc.collect()
    assert workers() == []


def test_a_loop_that_breaks_ends_its_threads() -> None:
    ahead = d5.Prefetched(d5.OrderedSampler(Watched(slow_s=0.001), 2), 3, 2)

    def broken_off() -> None:
        for _ in ahead.batches(0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    gc.collect()
    assert workers() == []
    assert len(content(ahead, 1)) == 20  # and another epoch works as before


def test_an_interrupt_while_waiting() -> None:
    data = Watched()
    data.go.clear()
    ahead = d5.Prefetched(d5.OrderedSampler(data, 2), 2, 2)
    interrupt = threading.Timer(0.2, _thread.interrupt_main)
    let_go = threading.Timer(0.4, data.go.set)
    interrupt.start()
    let_go.start()
    with pytest.raises(KeyboardInterrupt):
        next(ahead.batches(0))
    let_go.join(LIMIT_S)
    gc.collect()
    until(lambda: workers() == [])
    assert len(content(ahead, 0)) == 20


def test_the_end_of_a_loop_waits_for_no_stuck_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_END_S", 0.1)
    data = Watched()
    batches = d5.Prefetched(d5.OrderedSampler(data, 2), 2).batches(0)
    next(batches)
    until(lambda: len(data.asked) == 3)
    data.go.clear()
    next(batches)
    until(lambda: len(data.asked) == 4)
    batches.close()  # type: ignore[attr-defined]
    assert len(workers()) == 1  # it is still stuck: `close` did not wait until it gave up
    data.go.set()
    until(lambda: workers() == [])


def test_a_batch_that_never_comes_is_an_error() -> None:
    data = Watched()
    data.go.clear()
    threading.Timer(0.5, data.go.set).start()
    with pytest.raises(
        Deep5Error, match=r"batch 0 after the start was not ready within 0\.1 s; remedy: check what the"
    ):
        next(d5.Prefetched(d5.OrderedSampler(data, 2), timeout_s=0.1).batches(0))


def test_two_epochs_at_once() -> None:
    plain = d5.ShuffleSampler(Watched(), 3)
    ahead = d5.Prefetched(plain, 2)
    pairs = list(zip(ahead.batches(0), ahead.batches(1), strict=True))
    assert [one[0].tolist() for one, _ in pairs] == [ids for ids, _ in content(plain, 0)]
    assert [other[0].tolist() for _, other in pairs] == [ids for ids, _ in content(plain, 1)]


def test_batches_are_let_go() -> None:
    """A batch that the consumer has released stays alive neither in the iterator nor in a thread."""
    import weakref

    class Kept(np.ndarray):
        """Supports weak references."""

    class Fresh(Watched):
        def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
            super().batch(ids)
            return {"input": np.zeros(4).view(Kept)}

    data = Fresh()
    batches = d5.Prefetched(d5.OrderedSampler(data, 4), 1).batches(0)
    gone = []
    for number in range(3):
        until(lambda number=number: len(data.asked) > number or number == 0)  # type: ignore[misc]
        data.go.set()
        ids, inputs = next(batches)
        gone.append(weakref.ref(inputs["input"]))
        data.go.clear()
    del ids, inputs
    until(lambda: len(data.asked) == 4)  # the thread is preparing the next one
    assert [ref() is None for ref in gone] == [True, True, True]
    data.go.set()
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 0}, r"Prefetched: got depth=0; allowed: an integer of at least 1"),
        ({"workers": 1.5}, r"Prefetched: got workers=1.5; allowed"),
        (
            {"depth": 2, "workers": 3},
            r"Prefetched: got 3 workers for a depth of 2; allowed: as many as the depth; remedy: d",
        ),
        ({"timeout_s": 0}, r"Prefetched: got timeout_s=0; allowed: seconds above 0"),
    ],
)
def test_bad_prefetching(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        d5.Prefetched(d5.OrderedSampler(Watched(), 2), **arguments)


def test_what_is_no_source() -> None:
    with pytest.raises(UsageError, match=r"Prefetched: got \[1, 2\]; allowed: a d5.Sampler"):
        d5.Prefetched([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"start at batch 21; allowed: an integer from 0 to 20"):
        d5.Prefetched(d5.OrderedSampler(Watched(), 2)).batches(0, 21)


def test_a_source_that_says_that_a_thread_cannot_make_its_batches() -> None:
    class Alone(d5.OrderedSampler):
        no_prefetch = "what one thread alone may ask for; allowed: others"

    class Around:
        """A wrapper that forwards unknown attributes."""

        def __init__(self, source: Any) -> None:
            self.source = source

        def __getattr__(self, name: str) -> Any:
            return getattr(self.source, name)

        def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
            yield from self.source.batches(epoch, start)

        def steps(self, epoch: int) -> int | None:
            count: int | None = self.source.steps(epoch)
            return count

        def order_hash(self, epochs: int) -> str | None:
            return None

    alone = Alone(Watched(), 2)
    for source in (alone, Around(alone)):
        with pytest.raises(UsageError, match=r"Prefetched: got what one thread alone may ask for; allowed: others"):
            d5.Prefetched(source)
    assert len(list(d5.Prefetched(Around(d5.OrderedSampler(Watched(), 2))).batches(0))) == 20


def test_training_is_the_same_with_and_without() -> None:
    from deep5.training.datasets.class_templates import synthetic

    data = synthetic(shape=(4,), classes=3, train=21, test=6)
    weights = []
    for wrap in (lambda sampler: sampler, lambda sampler: d5.Prefetched(sampler, 3)):
        executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
        trainer = d5.Trainer(
            executor, d5.Adam(), wrap(d5.ShuffleSampler(data.train, 4)), wrap(d5.OrderedSampler(data.test, 4))
        )
        trainer.train(2)
        weights.append({name: d5.to_numpy(value).copy() for name, value in executor.parameters().items()})
    for name, value in weights[0].items():
        np.testing.assert_array_equal(value, weights[1][name])


PROCESS = """
import sys, numpy as np, deep5 as d5
from deep5.training.dataset import ArrayDataset
batches = d5.Prefetched(d5.OrderedSampler(ArrayDataset(dict(input=np.zeros((4000, 1000)))), 100), 4, 4).batches(0)
next(batches)
print("taken", flush=True)
{end}
"""


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise KeyboardInterrupt", -2), ("sys.exit(5)", 5)])
def test_a_process_ends_in_the_middle_of_an_epoch(end: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS.format(end=end)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (status, "taken\n")
    assert "prefetch" not in done.stderr


def test_the_next_batch_is_made_while_a_step_runs() -> None:
    """A step that lasts until the next batch is ready ends: the preparation does not wait for the step."""
    plain = d5.OrderedSampler(Watched(40), 2)
    made = threading.Semaphore(0)
    batches = plain.batches

    def noted(*given: Any) -> Any:
        for batch in batches(*given):
            made.release()
            yield batch

    plain.batches = noted  # type: ignore[method-assign]
    ahead = d5.Prefetched(plain, 2)
    for number, _ in enumerate(ahead.batches(0)):
        if number < 19:
            assert made.acquire(timeout=60)
    assert number == 19
