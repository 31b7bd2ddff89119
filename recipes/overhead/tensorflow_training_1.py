"""A training of LeNet on the digits under the trainer, on TensorFlow, against hand-written TensorFlow, batch 1."""

import deep5 as d5
from deep5.recipes.overhead import by_deep5, tensorflow_by_hand

FIXED = {
    "candidate": by_deep5.training_run,
    "candidate_kwargs": {"framework": "tensorflow", "batch_size": 1},
    "baseline": tensorflow_by_hand.training_run,
    "baseline_kwargs": {"batch_size": 1},
    "steps": 150,
    "rounds": 60,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.01")]
SIZES = {"smoke": {"steps": 4, "rounds": 6}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
