"""LeNet on the digits by all-reduce in pairs at every step, and the mean over the pairs after every eighth.

Goal: 95 % test accuracy with 2 and with 4 ranks: `deep5 run distributed_hierarchical --ranks 2`.
"""

import deep5 as d5
from deep5.recipes.distributed.workload import METRICS, MUTABLE, SIZES, fixed

FIXED = fixed("hierarchical", group_size=2, every=8)

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
