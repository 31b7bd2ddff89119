"""The recipes `microbatching_…`: networks in micro-batches under a workspace limit, compared with undivided ones."""

from __future__ import annotations

from typing import Any

import deep5 as d5
from deep5.core.plugins import load
from deep5.recipe.family import RecipeFamily

__all__ = ["FAMILY"]

_FRAMEWORKS = {"onnxruntime": "ONNX Runtime", "pytorch": "PyTorch"}
# By network: name, arguments, learning rate and limit; then arguments and limit of the smoke size.
_NETWORKS: dict[str, tuple[str, dict[str, Any], float, int, dict[str, Any], float]] = {
    "alexnet": ("AlexNet", {}, 1e-5, 128, {"width": 8, "image": 63, "classes": 10}, 1.5),
    "resnet": ("ResNet-20", {"depth": 20}, 0.01, 24, {"depth": 8}, 8),
}


def _parts(case: str) -> dict[str, Any]:
    from deep5.recipes.microbatching import measured, steps

    network, _, framework = case.partition("_")
    _, arguments, rate, limit_mib, smaller, smaller_mib = _NETWORKS[network]
    workload = {
        "framework": framework,
        "network": load("networks", network),
        "network_kwargs": arguments,
        "batch_size": 64,
        "algorithms": ("fft", "im2col"),
        "rate": rate,
    }
    small = {**workload, "network_kwargs": smaller, "batch_size": 8}
    return {
        "FIXED": {
            "candidate": steps.planned,
            "candidate_kwargs": {**workload, "limit_mib": limit_mib},
            "baseline": steps.undivided,
            "baseline_kwargs": workload,
            "steps": 1,
            "rounds": 7,
            "threads": 1,
        },
        "MUTABLE": {"seed": 0},
        "METRICS": [
            (measured.Workspace(), "<= 100 % of the limit"),
            (measured.UndividedWorkspace(), "> 100 % of the limit"),
            # The last digits of float32; a few steps of SGD do not amplify them while the loss falls.
            (measured.LossDifference(), "<= 1e-5"),
            (d5.Slowdown(), None),
            (measured.StepMemory(), None),
            (measured.UndividedStepMemory(), None),
        ],
        "SIZES": {
            "smoke": {
                "candidate_kwargs": {**small, "limit_mib": smaller_mib, "sizes": [1, 4]},
                "baseline_kwargs": small,
                "rounds": 6,
            }
        },
    }


FAMILY = RecipeFamily(
    cases={
        f"{network}_{framework}": f"{title} on {called} (FFT, im2col): micro-batches under a workspace limit, against "
        "undivided"
        for network, (title, *_) in _NETWORKS.items()
        for framework, called in _FRAMEWORKS.items()
    },
    parts=_parts,
)
