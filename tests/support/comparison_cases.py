"""A comparison on disk, written by the product's own code."""

from __future__ import annotations

from pathlib import Path

from deep5.compare.candidate import Candidate, Plan
from deep5.compare.processes import Outcome
from deep5.compare.proof import ProofRow
from deep5.compare.record import ComparisonRecord
from deep5.measuring.scheme import CURRENT
from deep5.recipe.recipe import load_recipe


def written_comparison(folder: Path) -> Path:
    """A comparison with two workloads and three rounds, written by the product's own code."""
    recipe = load_recipe("deepbench_gemm").at_size("smoke")
    labels = ("reference", "jax, eager")
    plan = Plan(
        recipe="deepbench_gemm",
        size="smoke",
        kind="operators",
        mode="rigorous",
        candidates=[Candidate(label=label, framework="reference") for label in labels],
        baseline="reference",
        threads=1,
        seed=0,
        steps=1,
        most=3,
        time_limit_s=60.0,
        memory_limit_bytes=1 << 30,
        scheme=CURRENT,
        contents=dict.fromkeys(labels, ""),
    )
    record = ComparisonRecord(folder, plan, dict.fromkeys(labels, recipe), "whole calls")
    for label in labels:
        rows = [
            ProofRow(candidate=label, workload=name, part="b", what="result 0", relative=0.0, ulps=0.0, allowed=1e-5)
            for name in ("gemm-1", "gemm-2")
        ]
        record.prove(label, rows, [], {})
    for number in range(3):
        for place, label in enumerate(labels):
            record.note_process(
                label,
                "time",
                Outcome(answer={}, reason=None, begin_s=2.0 * number + place, wall_s=1.0, memory_bytes=1 << 20),
                number,
            )
            own = [
                {
                    "workload": workload,
                    "batch_size": None,
                    "settled": True,
                    "first_call_s": 0.5,
                    "warm_up": 1,
                    "samples": [(0.1 * at, (0.01 + 1 / 3 * 0.001 * at) * (1 + place), 2) for at in range(8)],
                }
                for workload in ("gemm-1", "gemm-2")
            ]
            answer = {
                "settings": {"framework": "reference"},
                "peaks": {"product_flop_s": None, "copy_byte_s": None, "product_error": None},
                "provenance": {},
                "warnings": [],
                "workloads": own,
            }
            record.note_times(label, number, answer)
    record.judge({}, 3)
    resources = {"wall_s": 6.0, "processes_s": 5.0, "harness_s": 1.0, "harness_share": 1 / 6}
    return record.finish(lambda: resources).folder
