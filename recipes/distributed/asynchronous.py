"""LeNet on the digits by an asynchronous parameter server: every gradient is applied when it arrives.

Goal: 95 % test accuracy with 2 and with 4 ranks: `deep5 run distributed_asynchronous --ranks 2`.
"""

import deep5 as d5
from deep5.recipes.distributed.workload import METRICS, MUTABLE, SIZES, fixed

FIXED = fixed("asynchronous")
METRICS = [*METRICS, (d5.Staleness(), None)]

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
