"""LeNet under the trainer with Yogi, which deep5 does not ship, against a loop with PyTorch's fused Adam, batch 64."""

import deep5 as d5
from deep5.recipes.overhead.optimizers import Yogi
from deep5.recipes.overhead.training import lenet_by_hand, lenet_by_trainer

FIXED = {
    "candidate": lenet_by_trainer,
    "candidate_kwargs": {"batch_size": 64, "optimizer": Yogi},
    "baseline": lenet_by_hand,
    "baseline_kwargs": {"batch_size": 64, "optimizer": "adam"},
    "steps": 22,
    "rounds": 100,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.0")]
SIZES = {"smoke": {"steps": 5, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
