"""DeepBench's recurrent layers on every framework, in deep5 and as the framework's own layers.

The two implementations differ: deep5 runs a layer as cells, step by step, and bare is the framework's own layer
(torch.nn.GRU, a Keras layer). Their ratio shows which is faster, not the overhead of deep5; a warning says so if it is
below 0.9.
"""

import deep5 as d5
from deep5.recipes.deepbench import LIMIT_GFLOP, METRICS, MUTABLE, WHOLE
from deep5.recipes.deepbench_by_hand import recurrent_layer

FIXED = {
    "problems": "deepbench.rnn",
    "bare": recurrent_layer,
    "limit_gflop": LIMIT_GFLOP,
    "backward": True,
    "box": "rnn-13",  # LSTM, H=512, N=16, T=25
}
SIZES = {
    "smoke": {
        "frameworks": ("pytorch", "tensorflow"),
        "uses": ("inference_server",),
        "backward": False,  # inference sizes have no gradients
        "box": "rnn-117",
        "limit_gflop": 0.2,
        "take": 2,
        "rounds": 7,
    },
    "whole": WHOLE,
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
