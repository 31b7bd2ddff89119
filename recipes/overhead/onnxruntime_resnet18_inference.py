"""Inference of ResNet-18 on 32 x 32, batch 8, on ONNX Runtime, against its own session."""

import deep5 as d5
from deep5.recipes.overhead import by_deep5, onnxruntime_by_hand

FIXED = {
    "candidate": by_deep5.inference,
    "candidate_kwargs": {"framework": "onnxruntime", "network": d5.networks.resnet18_small, "batch_size": 8},
    "baseline": onnxruntime_by_hand.inference,
    "baseline_kwargs": {"network": d5.networks.resnet18_small, "batch_size": 8},
    "steps": 4,
    "rounds": 30,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.02")]
SIZES = {"smoke": {"steps": 2, "rounds": 6}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
