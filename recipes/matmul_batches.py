"""Matrix products b x 4096 · 4096 x 9192 from b = 256 down to 1 on every framework, compared with linear scaling."""

import deep5 as d5
from deep5.metrics.operator_time import OperatorCoverage, OperatorTime
from deep5.recipes.linear_scaling import LinearScaling, LinearScalingOfOne

FIXED = {"problems": "studies.matmul"}
MUTABLE = {
    "frameworks": ("pytorch", "tensorflow", "jax", "onnxruntime", "reference"),
    "rigorous": False,
    "rounds": 30,
    "threads": 1,
    "pictures": True,
    "seed": 0,
}
METRICS = [(LinearScaling(), None), (LinearScalingOfOne(), None), (OperatorTime(), None), (OperatorCoverage(), None)]
SIZES = {"smoke": {"frameworks": ("pytorch", "reference"), "limit_gflop": 1.3, "rounds": 7}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
