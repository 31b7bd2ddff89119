"""The recipes `text_inference_…`: a GPT that generates with a cache of keys and values, against one without.

Both sides generate the same tokens, greedily, by batch and by length of the prompt. The table in `candidate.txt` has
the time to the first token, the time per output token and tokens per second of each. The weights are drawn: the time
does not depend on them.
"""

from __future__ import annotations

from typing import Any

import deep5 as d5
from deep5.recipe.family import RecipeFamily

__all__ = ["FAMILY"]

_FRAMEWORKS = {"jax": "JAX", "onnxruntime": "ONNX Runtime", "pytorch": "PyTorch", "tensorflow": "TensorFlow"}
_SIZES = {"vocabulary": 320, "length": 192, "width": 128, "heads": 4, "layers": 4}
_SMALL = {"vocabulary": 32, "length": 32, "width": 16, "heads": 2, "layers": 1}


def _parts(case: str) -> dict[str, Any]:
    from deep5.recipes.text import generating, inference_metrics

    workload = {"framework": case, "network_kwargs": _SIZES, "batches": [1, 8], "prompts": [16, 64, 160]}
    small = {"framework": case, "network_kwargs": _SMALL, "batches": [1, 2], "prompts": [4, 16]}
    return {
        "FIXED": {
            "candidate": generating.cached,
            "candidate_kwargs": workload,
            "baseline": generating.recomputed,
            "baseline_kwargs": workload,
            "steps": 16,
            "rounds": 12,
            "threads": 1,
        },
        "MUTABLE": {"seed": 0},
        "METRICS": [
            # Without the cache, a step of 160 tokens takes many times as long; a cache that is of no use takes as long.
            (d5.Slowdown(), "<= 0.5"),
            (inference_metrics.FailedRequests(), "<= 0"),
            (inference_metrics.OtherTokens(), "<= 0"),
            (inference_metrics.FirstToken(), None),
            (inference_metrics.OutputToken(), None),
            (inference_metrics.GeneratedTokens(), None),
        ],
        "SIZES": {
            "smoke": {"candidate_kwargs": small, "baseline_kwargs": small, "steps": 4, "rounds": 6},
        },
    }


FAMILY = RecipeFamily(
    cases={
        framework: f"Prefill and decoding of a GPT with a cache on {called}, by batch and context, against one without"
        for framework, called in _FRAMEWORKS.items()
    },
    parts=_parts,
)
