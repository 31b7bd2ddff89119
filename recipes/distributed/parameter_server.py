"""LeNet on the digits by a synchronous parameter server: gradients to the first rank, parameters back.

Goal: 95 % test accuracy with 2 and with 4 ranks: `deep5 run distributed_parameter_server --ranks 2`.
"""

import deep5 as d5
from deep5.recipes.distributed.workload import METRICS, MUTABLE, SIZES, fixed

FIXED = fixed("parameter_server")
METRICS = [*METRICS, (d5.CommunicationOverlap(), None), (d5.StepLatency(), None)]

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
