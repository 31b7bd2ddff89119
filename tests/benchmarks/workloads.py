"""Training steps of the recipes whose steps also have hand-written counterparts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from registry import register

RECIPES = (
    "detection_centers",
    "detection_ssd",
    "generation_autoencoder",
    "graph_block_model",
    "graph_karate_club",
    "recommendation_dlrm",
    "reinforcement_reinforce",
    "speech_vowels",
    "text_byte_pairs",
    "text_gpt",
    "text_lstm",
    "text_phonemes",
    "vision_vit",
)
QUICK = ("detection_ssd", "graph_karate_club", "recommendation_dlrm", "text_lstm", "text_phonemes", "vision_vit")
"""On PyTorch. The others have the same layers, or their setup takes long; on JAX, all compile for seconds."""


def _step(framework: str, recipe: str) -> None:
    quick = framework == "pytorch" and recipe in QUICK

    @register(f"{framework}.{recipe}_step", group=framework, unit="step", quick=quick)
    def setup(folder: Path) -> Callable[[], object]:
        from deep5.recipes.overhead.workloads.workload import training_step

        return training_step(steps=1, seed=0, threads=1, framework=framework, recipe=recipe)


for _framework in ("pytorch", "jax"):
    for _recipe in RECIPES:
        _step(_framework, _recipe)
