"""LeNet at batch 1 under the trainer as the only rank of a scheme, against the same without ranks.

A step of one sample is short, so that what is added shows.
"""

import deep5 as d5
from deep5.recipes.overhead import ranks_training

FIXED = {
    "candidate": ranks_training.lenet_as_one_rank,
    "candidate_kwargs": {"batch_size": 1},
    "baseline": ranks_training.lenet_alone,
    "baseline_kwargs": {"batch_size": 1},
    "steps": 100,
    "rounds": 120,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.01")]
SIZES = {"smoke": {"steps": 4, "rounds": 6}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
