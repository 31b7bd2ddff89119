"""LeNet on the digits by synchronous decentralized SGD: the mean gradient of all ranks, by all-reduce.

Goal: 95 % test accuracy with 2 and with 4 ranks: `deep5 run distributed_all_reduce --ranks 2`.
"""

import deep5 as d5
from deep5.recipes.distributed.workload import METRICS, MUTABLE, SIZES, fixed

FIXED = fixed("all_reduce")
METRICS = [*METRICS, (d5.CommunicationOverlap(), None), (d5.StepLatency(), None)]

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
