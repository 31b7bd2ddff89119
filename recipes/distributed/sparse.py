"""LeNet on the digits by all-reduce of the largest 5 % of the gradients, merged as sparse streams.

Goal: 95 % test accuracy with 2 and with 4 ranks: `deep5 run distributed_sparse --ranks 2`.
"""

import deep5 as d5
from deep5.recipes.distributed.workload import METRICS, MUTABLE, SIZES, fixed

FIXED = fixed("all_reduce", "sparse_all_reduce", ratio=0.05)

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
