"""The checks of a timed process at its end: that it computes what was proved, by Python's own clock."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
import deep5.compare.step_clock
from deep5.compare import inference
from deep5.compare.clocks import replaced_clock
from deep5.compare.stages import disagreement
from deep5.compare.training import _maker, assembled, first_batches, of_reference
from deep5.compare.witness import WITNESSED, not_trained, reuses_inference
from deep5.core.events import StopTraining
from deep5.measuring import loops
from deep5.measuring.kept_results import reuses_results
from deep5.measuring.loops import Work
from deep5.recipe.recipe import load_recipe
from deep5.training.trainer import Trainer


class _Stop(d5.Event):
    def after_step(self, trainer: Any, *_: Any) -> None:
        if trainer.step == 3:
            raise StopTraining("enough")


def witnessed(spoil: Callable[[Any], None] | None = None, **changes: Any) -> str | None:
    """What is said of a trainer after three steps, whose optimizer is then spoiled."""
    recipe = load_recipe("digits_lenet").at_size("smoke").with_settings({"framework": "reference", **changes})
    parts = assembled(recipe)
    trainer = Trainer(parts.executor, parts.optimizer, parts.train_sampler, seed=parts.seeds["noise"])
    trainer.train(10, [_Stop()])
    if spoil is not None:
        spoil(trainer)
    return not_trained(trainer, first_batches(parts, WITNESSED), _maker(of_reference(recipe), "reference"))


def unchanged(trainer: Any) -> None:
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda inputs, info: _restored(trainer.executor, lambda: step(inputs, info))


def _restored(executor: Any, call: Callable[[], Any]) -> Any:
    state = executor.state_dict()
    outputs = call()
    executor.load_state_dict(state)
    return outputs


def other_loss(trainer: Any) -> None:
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda inputs, info: {name: 1.01 * value for name, value in step(inputs, info).items()}


def along_another_gradient(trainer: Any) -> None:
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda inputs, info: _mirrored(trainer.executor, lambda: step(inputs, info))


def _mirrored(executor: Any, call: Callable[[], Any]) -> Any:
    before = executor.state_dict()
    outputs = call()
    after = executor.state_dict()
    executor.load_state_dict({name: 2 * before[name] - value for name, value in after.items()})
    return outputs


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        ("momentum", {}),
        ("adam", {}),
        ("accelegrad", {}),  # its gradient is that of another point
        ("lion", {"optimizer_kwargs": {"lr": 0.001}}),
        ("lbfgs", {}),
        ("momentum", {"clip_norm": 0.1, "weight_decay": 0.01}),
        ("adam", {"schedules": {"lr": d5.Cosine(0.01)}}),
        ("sgd", {"optimizer_kwargs": {"lr": 0.0}}),
        ("native:adam", {"framework": "pytorch"}),
        ("native:sgd", {"framework": "pytorch", "optimizer_kwargs": {"lr": 0.0}}),
    ],
)
def test_a_training_that_continues_passes(optimizer: str, changes: dict[str, Any]) -> None:
    assert witnessed(optimizer=optimizer, **changes) is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (unchanged, "updates the parameters in a step after the timed ones with a relative error of 1"),
        (along_another_gradient, "updates the parameters in a step after the timed ones with a relative error of 2"),
        (other_loss, "gives the loss .* after the timed steps, where the reference gives"),
    ],
)
def test_a_training_that_does_something_else_is_seen(spoil: Callable[[Any], None], said: str) -> None:
    found = witnessed(spoil)
    assert found is not None
    assert re.match(said, found), found


def test_inference_that_follows_its_inputs_passes() -> None:
    parts = assembled(load_recipe("digits_lenet").at_size("smoke").with_settings({"framework": "reference"}))
    inputs, batches = first_batches(parts, 1)[0][1], first_batches(parts, 8)
    assert reuses_inference(parts.executor, inputs, batches) is None
    first = parts.executor.inference(batches[0][1])
    parts.executor.inference = lambda given: first
    found = reuses_inference(parts.executor, inputs, batches)
    assert found is not None
    assert "is not the reference's" in found


def test_a_delayed_call_of_inference_leaves_no_short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, slow = loops.time_loop, iter([0.1] * 5)
    monkeypatch.setattr(loops, "time_loop", lambda work, calls: loop(work, calls) + next(slow, 0.0))
    recipe = load_recipe("digits_lenet").at_size("smoke").with_settings({"framework": "reference", "batch_size": 1})
    report = {"mode": "rigorous", "threads": 1}
    found, _ = inference._time(recipe, report, lambda stage: None, time.perf_counter())
    lengths = [seconds * calls for _, seconds, calls in found["workloads"][0]["samples"]]
    assert float(np.median(lengths)) >= loops.LEAST_SAMPLE_S


def test_kept_results_are_seen() -> None:
    kept: dict[int, int] = {}

    def looked_up(number: int) -> int:
        if number not in kept:
            time.sleep(5e-3)
            kept[number] = number
        return kept[number]

    found = reuses_results(lambda number: Work(call=looked_up, arguments=(number,)))
    assert found is not None
    assert "with the same inputs again" in found
    assert reuses_results(lambda number: Work(call=time.sleep, arguments=(5e-3,))) is None
    assert reuses_results(lambda number: Work(call=np.negative, arguments=(np.ones(3),))) is None


def test_a_replaced_clock_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replaced_clock() is None
    own = time.perf_counter
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: 0.9 * own())
        assert "time.perf_counter was replaced by" in str(replaced_clock())
    with monkeypatch.context() as patch:
        patch.setattr(deep5.compare.step_clock, "perf_counter_ns", lambda: 0)
        assert "deep5.compare.step_clock.perf_counter_ns was replaced by" in str(replaced_clock())
    assert replaced_clock() is None


@pytest.mark.parametrize(
    ("seconds", "known", "wrong"),
    [(3.0, 3.1, False), (3.0, 3.3, False), (3.0, 3.6, True), (3.0, 2.5, True), (30.0, 31.0, False), (27.0, 30.0, True)],
)
def test_the_parents_clock(seconds: float, known: float, wrong: bool) -> None:
    work = {"samples": [(1.0, 0.1, 1), (seconds - 0.5, 0.1, 1)], "stage": "the timed calls", "stage_begin_s": -0.5}
    found = disagreement([work], {"the timed calls": known})
    assert (found is not None) == wrong
    assert found is None or found == (
        f"its clock is wrong: the timed calls took {known:.3g} s, and {seconds:.3g} s by its own clock"
    )
    assert disagreement([{**work, "samples": []}], {}) is None
    assert "an unknown time" in str(disagreement([work], {}))
