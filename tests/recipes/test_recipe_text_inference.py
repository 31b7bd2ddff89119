"""The recipes of language-model inference: the table and the metrics follow from the requests, and faults are found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.generation.decoding import Decoding
from deep5.measuring.timing import WARMUPS, time_rounds
from deep5.recipe.recipe import load_recipe
from deep5.recipes.text import generating, inference_metrics
from deep5.run.execute import execute

SMALL: dict[str, Any] = {
    "steps": 4,
    "seed": 0,
    "threads": 1,
    "framework": "reference",
    "network_kwargs": {"vocabulary": 32, "length": 24, "width": 16, "heads": 2, "layers": 1},
    "batches": [1, 3],
    "prompts": [2, 12],
}
METRICS = (
    inference_metrics.FailedRequests,
    inference_metrics.OtherTokens,
    inference_metrics.FirstToken,
    inference_metrics.OutputToken,
    inference_metrics.GeneratedTokens,
)


def test_the_run_has_a_table_and_passes_its_proof(tmp_path: Path) -> None:
    result = execute(load_recipe("text_inference_pytorch").at_size("smoke"), out=tmp_path)
    assert result.status == "success"
    assert (result.metric("failed_requests"), result.metric("other_tokens")) == (0, 0)
    assert len(result.samples()["time_to_first_token"]) == 6
    lines = (result.folder / "candidate.txt").read_text().splitlines()
    titles = ["batch", "prompt", "ttft_ms", "tpot_ms", "inter_token_p99_ms", "tokens_per_s", "requests", "failures"]
    assert lines[0].split() == titles
    assert [line.split()[:2] for line in lines[1:]] == [["1", "4"], ["1", "16"], ["2", "4"], ["2", "16"]]
    assert [line.split()[-2:] for line in lines[1:]] == [["6", "0"]] * 2 + [["12", "0"]] * 2
    largest = lines[-1].split()
    assert float(largest[2]) == pytest.approx(result.metric("time_to_first_token"), rel=1e-3)


def values(rounds: Any) -> dict[str, float | None]:
    found = {}
    for metric in METRICS:
        observer = metric().observer()
        observer.after_timing(rounds)
        found[metric.name] = observer.value()
    return found


def timed() -> Any:
    candidate, baseline, again = (
        generating.cached(**SMALL),
        generating.recomputed(**SMALL),
        generating.recomputed(**SMALL),
    )
    return time_rounds(candidate, baseline, again, rounds=2, steps=4)


def test_metrics_follow_from_the_requests_of_timed_calls() -> None:
    candidate = generating.cached(**SMALL)
    for _ in range(1 + WARMUPS + 2):
        candidate()
    largest = [call[3, 12] for call in candidate._calls[1 + WARMUPS :]]
    reported = candidate.reported
    assert [len(call) for call in largest] == [3, 3]
    first = [1e3 * sorted(each.ttft_s for each in call)[1] for call in largest]
    assert inference_metrics.FirstToken().of(reported, None) == pytest.approx(first)
    each_token = [1e3 * sorted(each.tpot_s for each in call)[1] for call in largest]
    assert inference_metrics.OutputToken().of(reported, None) == pytest.approx(each_token)
    rate = [12 / (max(each.end_s for each in call) - min(each.arrival_s for each in call)) for call in largest]
    assert inference_metrics.GeneratedTokens().of(reported, None) == pytest.approx(rate)


def test_a_cache_that_holds_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that writes one place too early changes tokens, which the proof counts."""
    assert values(timed())["other_tokens"] == 0
    run = Decoding.step

    def step(self: Decoding, tokens: np.ndarray, active: np.ndarray) -> None:
        self._past = self._past - 1
        run(self, tokens, active)

    monkeypatch.setattr(Decoding, "step", step)
    assert (values(timed())["other_tokens"] or 0) > 0


def test_requests_that_fail_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A back-end that fails at the last step of one batch: its requests are failures with infinite latencies."""
    rows = {3: 0}
    run = Decoding.step

    def step(self: Decoding, tokens: np.ndarray, active: np.ndarray) -> None:
        if len(tokens) in rows:
            rows[3] += 1
            if rows[3] % 3 == 0:
                raise d5.Deep5Error("planted")
        run(self, tokens, active)

    candidate = generating.cached(**SMALL)
    monkeypatch.setattr(Decoding, "step", step)
    for _ in range(1 + WARMUPS + 1):
        candidate()
    reported = candidate.reported
    assert inference_metrics.FailedRequests().of(reported, None) == [6.0]
    assert inference_metrics.FirstToken().of(reported, None) == [math.inf]
    assert inference_metrics.GeneratedTokens().of(reported, None) == [0.0]
    assert reported["report"].splitlines()[-1].split()[-2:] == ["3", "3"]
