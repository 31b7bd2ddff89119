"""Yogi, which deep5 does not ship, by deep5's kernel alone, against PyTorch's fused Adam, 431 thousand parameters."""

import deep5 as d5
from deep5.recipes.overhead.optimizers import SMALL, Yogi, fused_alone, rule_alone

FIXED = {
    "candidate": rule_alone,
    "candidate_kwargs": {"rule": Yogi, "shapes": SMALL},
    "baseline": fused_alone,
    "baseline_kwargs": {"optimizer": "adam", "shapes": SMALL},
    "steps": 40,
    "rounds": 100,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.0")]
SIZES = {"smoke": {"steps": 2, "rounds": 8}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
