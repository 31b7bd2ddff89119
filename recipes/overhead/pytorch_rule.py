"""An update rule by deep5's kernel alone, against PyTorch's own optimizer, fused or whatever is the fastest.

Which of them: `--set candidate_kwargs.rule=adagrad --set baseline_kwargs.rule=adagrad`, and the same for `shapes`: 431
thousand parameters ("small") or 11 million ("large"); `rule_table` runs them all.
"""

import deep5 as d5
from deep5.recipes.overhead import rules

FIXED = {"candidate": rules.rule_alone, "baseline": rules.native_alone, "steps": 10, "rounds": 60, "threads": 1}
MUTABLE = {
    "candidate_kwargs": {"rule": "adamw", "shapes": "small"},
    "baseline_kwargs": {"rule": "adamw", "shapes": "small"},
    "seed": 0,
}
METRICS = [(d5.Slowdown(), "<= 1.05")]
SIZES = {"smoke": {"steps": 2, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
