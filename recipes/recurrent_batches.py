"""Time of recurrent layers for batch sizes from 64 down to 1 on every framework, and of one that keeps its weights.

A recurrent layer multiplies by the same weights in every step. With a small batch a step has few operations for each
weight that it reads, so that halving the batch does not halve the time: strong scaling ends there. Persistent kernels
(Diamos et al., ICML 2016) keep the weights on the chip from step to step. Each layer, of 32 steps, is timed as ONNX's
RNN, GRU or LSTM on each framework, and as `deep5.RecurrentPersistent`, which copies the weights once and runs all steps
in one call. Titles have the operations, and the bytes with the weights read once and in every step.
"""

import deep5 as d5
from deep5.metrics.operator_time import OperatorCoverage, OperatorTime
from deep5.recipes.linear_scaling import LinearScaling, LinearScalingOfOne

FIXED = {"problems": "studies.recurrent"}
MUTABLE = {
    "frameworks": ("pytorch", "tensorflow", "jax", "onnxruntime"),
    "rigorous": False,
    "rounds": 30,
    "threads": 1,
    "pictures": True,
    "seed": 0,
}
METRICS = [(LinearScaling(), None), (LinearScalingOfOne(), None), (OperatorTime(), None), (OperatorCoverage(), None)]
SIZES = {
    "smoke": {"frameworks": ("pytorch", "onnxruntime"), "uses": ("lstm",), "limit_gflop": 0.1, "rounds": 7},
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
