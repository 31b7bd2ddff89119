"""AlexNet on ONNX Runtime (FFT, im2col): micro-batches under a workspace limit, against undivided."""

import deep5 as d5
from deep5.recipes.microbatching import measured, steps

WORKLOAD = {
    "framework": "onnxruntime",
    "network": d5.networks.alexnet,
    "network_kwargs": {},
    "batch_size": 64,
    "algorithms": ("fft", "im2col"),
    "rate": 1e-5,
}
SMALL = {"network_kwargs": {"width": 8, "image": 63, "classes": 10}, "batch_size": 8}
FIXED = {
    "candidate": steps.planned,
    "candidate_kwargs": {**WORKLOAD, "limit_mib": 128},
    "baseline": steps.undivided,
    "baseline_kwargs": WORKLOAD,
    "steps": 1,
    "rounds": 7,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [
    (measured.Workspace(), "<= 100 % of the limit"),
    (measured.UndividedWorkspace(), "> 100 % of the limit"),
    # Float32's last digits, which a few steps of SGD carry on where the loss falls.
    (measured.LossDifference(), "<= 1e-5"),
    (d5.Slowdown(), None),
    (measured.StepMemory(), None),
    (measured.UndividedStepMemory(), None),
]
SIZES = {
    "smoke": {
        "candidate_kwargs": {**WORKLOAD, **SMALL, "limit_mib": 1.5, "sizes": [1, 4]},
        "baseline_kwargs": {**WORKLOAD, **SMALL},
        "rounds": 6,
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
