"""Strong scaling on the digits: 256 samples per step over all ranks, for any number of ranks.

`deep5 study distributed_scaling_strong --seeds 6` trains LeNet by all-reduce with one, two and four ranks of one thread
each, and reports speedup and efficiency. `deep5 study FILE --vary ranks=1,2,4` does so for any recipe.
"""

import deep5 as d5
from deep5.recipes.distributed.workload import METRICS, MUTABLE, fixed

FIXED = fixed("all_reduce")
MUTABLE = {**MUTABLE, "batch_size": 256, "ranks": 2, "threads": 1}
METRICS = [(metric, None) for metric, _ in METRICS]
SIZES = {"smoke": {"epochs": 2, "dataset_kwargs": {"limit": 640}, "batch_size": 64}}

STUDY = {
    "1 rank": {"ranks": 1},
    "2 ranks": {"ranks": 2},
    "4 ranks": {"ranks": 4},
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
