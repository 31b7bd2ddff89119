"""A LeNet epoch under the trainer with PyTorch's fused Adam, against a hand-written loop, batch 1."""

import deep5 as d5
import deep5.frameworks.pytorch as d5fw
from deep5.recipes.overhead.training import lenet_by_hand, lenet_by_trainer

FIXED = {
    "candidate": lenet_by_trainer,
    "candidate_kwargs": {"batch_size": 1, "optimizer": d5fw.AdamOptimizer},
    "baseline": lenet_by_hand,
    "baseline_kwargs": {"batch_size": 1, "optimizer": "adam"},
    "steps": 200,
    "rounds": 100,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.01")]
SIZES = {"smoke": {"steps": 5, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
