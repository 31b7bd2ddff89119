"""A small residual network trained by two ranks, under the trainer, against DistributedDataParallel on gloo."""

import deep5 as d5
from deep5.recipes.overhead import ranks_training

FIXED = {
    "candidate": ranks_training.by_trainer,
    "candidate_kwargs": {"depth": 20, "batch_size": 64},
    "baseline": ranks_training.by_distributed_data_parallel,
    "baseline_kwargs": {"depth": 20, "batch_size": 64},
    "steps": 3,
    "rounds": 30,
    "threads": 1,
    "ranks": 2,
    "launcher": "torchrun",
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.0")]
SIZES = {"smoke": {"steps": 1, "rounds": 6}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
