"""Time of a convolution, a dense and a pooling layer for batch sizes from 256 down to 1 on every framework."""

import deep5 as d5
from deep5.metrics.operator_time import OperatorCoverage, OperatorTime
from deep5.recipes.linear_scaling import LinearScaling, LinearScalingOfOne

FIXED = {"problems": "studies.layers"}
MUTABLE = {
    "frameworks": ("pytorch", "tensorflow", "jax", "onnxruntime"),
    "rigorous": False,
    "rounds": 30,
    "threads": 1,
    "pictures": True,
    "seed": 0,
}
METRICS = [(LinearScaling(), None), (LinearScalingOfOne(), None), (OperatorTime(), None), (OperatorCoverage(), None)]
SIZES = {"smoke": {"frameworks": ("pytorch", "onnxruntime"), "limit_gflop": 1, "take": 6, "rounds": 7}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
