"""A training step on TensorFlow under an update rule, against one by hand with Keras's optimizer, batch 1.

Which of them: `--set candidate_kwargs.rule=lion --set baseline_kwargs.rule=lion`; `rule_table` runs them all.
"""

import deep5 as d5
from deep5.recipes.overhead import rules, tensorflow_by_hand

FIXED = {"candidate": rules.step, "baseline": tensorflow_by_hand.training_step, "steps": 60, "rounds": 60, "threads": 1}
MUTABLE = {
    "candidate_kwargs": {"framework": "tensorflow", "rule": "adamw", "batch_size": 1},
    "baseline_kwargs": {"network": d5.networks.lenet, "rule": "adamw", "batch_size": 1},
    "seed": 0,
}
METRICS = [(d5.Slowdown(), "<= 1.05")]
SIZES = {"smoke": {"steps": 4, "rounds": 6}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
