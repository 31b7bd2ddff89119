"""Adam by deep5's kernel alone, against PyTorch's fused Adam, 11 million parameters."""

import deep5 as d5
from deep5.recipes.overhead.optimizers import LARGE, SMALL, fused_alone, rule_alone

FIXED = {
    "candidate": rule_alone,
    "candidate_kwargs": {"rule": d5.Adam, "shapes": LARGE},
    "baseline": fused_alone,
    "baseline_kwargs": {"optimizer": "adam", "shapes": LARGE},
    "steps": 4,
    "rounds": 100,
    "threads": 1,
}
MUTABLE = {"seed": 0}
METRICS = [(d5.Slowdown(), "<= 1.0")]
SIZES = {
    "smoke": {
        "candidate_kwargs": {"rule": d5.Adam, "shapes": SMALL},
        "baseline_kwargs": {"optimizer": "adam", "shapes": SMALL},
        "steps": 2,
        "rounds": 8,
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
