"""A training of LeNet on the digits under the trainer, on PyTorch, against hand-written PyTorch, batch 64."""

import deep5 as d5
from deep5.recipes.overhead import by_deep5, pytorch_by_hand

FIXED = {
    "candidate": by_deep5.training_run,
    "candidate_kwargs": {"framework": "pytorch", "batch_size": 64},
    "baseline": pytorch_by_hand.training_run,
    "baseline_kwargs": {"batch_size": 64},
    "steps": 23,
    "rounds": 60,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.01")]
SIZES = {"smoke": {"steps": 4, "rounds": 6}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
