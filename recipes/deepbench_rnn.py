"""DeepBench's recurrent layers on every framework, through deep5 and on the bare framework."""

import deep5 as d5
from deep5.metrics.operator_time import BareRatio, OperatorCost, OperatorCoverage, OperatorTime
from deep5.recipes.deepbench_by_hand import recurrent_layer

FIXED = {
    "problems": "deepbench.rnn",
    "bare": recurrent_layer,
    "backward": True,
}
MUTABLE = {
    "frameworks": ("pytorch", "tensorflow", "jax", "onnxruntime"),
    "limit_gflop": 10,
    "take": None,
    "rigorous": False,
    "rounds": 30,
    "cold": False,
    "threads": 1,
    "pictures": True,
    "seed": 0,
}
METRICS = [(OperatorTime(), None), (BareRatio(), None), (OperatorCost(), None), (OperatorCoverage(), None)]
SIZES = {
    "smoke": {
        "frameworks": ("pytorch", "tensorflow"),
        "uses": ("inference_server",),
        "limit_gflop": 0.2,
        "take": 2,
        "rounds": 7,
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
