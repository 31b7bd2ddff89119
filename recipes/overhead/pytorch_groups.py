"""A training step on PyTorch under AdamW with biases in a group of their own, against two param_groups, batch 1."""

import deep5 as d5
from deep5.recipes.overhead import pytorch_by_hand, rules

FIXED = {
    "candidate": rules.step,
    "candidate_kwargs": {"framework": "pytorch", "rule": "adamw", "batch_size": 1, "variant": "groups"},
    "baseline": pytorch_by_hand.training_step,
    "baseline_kwargs": {"network": d5.networks.lenet, "rule": "adamw", "batch_size": 1, "variant": "groups"},
    "steps": 60,
    "rounds": 60,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.05")]
SIZES = {"smoke": {"steps": 4, "rounds": 6}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
