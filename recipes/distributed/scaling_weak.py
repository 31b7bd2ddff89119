"""Weak scaling on the digits: 64 samples per step for every rank.

`deep5 study distributed_scaling_weak --seeds 6` trains LeNet by all-reduce with one, two and four ranks of one thread
each, and reports how the time of a step changes. The learning rate stays constant: larger batches mean fewer steps per
epoch, and the accuracies show the cost.
"""

import deep5 as d5
from deep5.recipes.distributed.workload import METRICS, MUTABLE, fixed

FIXED = fixed("all_reduce")
MUTABLE = {**MUTABLE, "batch_size": 128, "ranks": 2, "threads": 1}
METRICS = [(metric, None) for metric, _ in METRICS]
SIZES = {"smoke": {"epochs": 2, "dataset_kwargs": {"limit": 640}}}

STUDY = {
    "1 rank": {"ranks": 1, "batch_size": 64},
    "2 ranks": {"ranks": 2, "batch_size": 128},
    "4 ranks": {"ranks": 4, "batch_size": 256},
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
