"""DeepBench's recurrent layers on every framework, through deep5 and on the bare framework."""

import deep5 as d5
from deep5.recipes.deepbench import METRICS, MUTABLE
from deep5.recipes.deepbench_by_hand import recurrent_layer

FIXED = {
    "problems": "deepbench.rnn",
    "bare": recurrent_layer,
    "backward": True,
}
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
