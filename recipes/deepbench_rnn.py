"""DeepBench's recurrent layers on every framework, as deep5 runs them and as the framework's own layers.

The two are different implementations: deep5 writes a layer as cells, step by step, where bare is the framework's own
layer (torch.nn.GRU, a Keras layer). Their ratio says which is faster, and not what deep5 costs; where it is below 0.9,
a warning says so too.
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
        "backward": False,  # sizes of inference have no gradients
        "box": "rnn-117",
        "limit_gflop": 0.2,
        "take": 2,
        "rounds": 7,
    },
    "whole": WHOLE,
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
