"""LeNet under the trainer as the only rank of a scheme, against the same without ranks, batch 64."""

import deep5 as d5
from deep5.recipes.overhead import ranks_training

FIXED = {
    "candidate": ranks_training.lenet_as_one_rank,
    "candidate_kwargs": {"batch_size": 64},
    "baseline": ranks_training.lenet_alone,
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
