"""A small network on shifted digits with batches of 32 to 2048: what large batches cost in accuracy, and save in time.

`deep5 run large_batches` trains with a batch of 32, to 93 % test accuracy. `deep5 study large_batches --seeds 3` trains
with every batch size by five rules, all over the same nine epochs, and so the same samples:

- constant: the rate of batch 32, whatever the batch size is.
- square root, linear: the rate grows with the square root of the batch size, or in proportion to it (Goyal et al.
  2017), after an epoch of warm-up from the rate of batch 32; at batch 32 they are the constant rule.
- LARS: a rate for each tensor (You et al. 2017), which grows with the square root of the batch size, after an epoch of
  warm-up.
- growing: the linear rule's rate stays, and the batch size grows by the factor 4 where the others divide the rate by it
  (Smith et al. 2018); named by the first batch size.

The rates at batch 32 are those of 0.02, 0.05, 0.1, 0.2 (momentum) and 1, 2, 4, 8 (LARS) with the lowest training loss,
averaged over three seeds that the study does not use. All other rates follow from these by the rules, and nothing was
chosen by test accuracy. By least squares, a linear classifier reaches 35.1 % test accuracy.

References: Goyal et al., arXiv:1706.02677; You, Gitman and Ginsburg, arXiv:1708.03888; Smith, Kindermans, Ying and Le,
ICLR 2018.
"""

from math import sqrt
from typing import Any

import deep5 as d5

_REFERENCE, _RATE, _LARS_RATE = 32, 0.1, 4.0
_BATCHES = (32, 64, 128, 256, 512, 1024, 2048)
_EVERY, _FACTOR = 3, 4


def _decayed(rate: float) -> d5.Schedule:
    return d5.StepDecay(rate, 1 / _FACTOR, epochs=_EVERY)


FIXED = {
    "model": "mlp",
    "model_kwargs": {"features": 144, "hidden": 128},
    "dataset": "shifted_digits",
    "dataset_kwargs": {"reach": 2, "flat": True},
    "train_sampler": "shuffle",
    "validation_sampler": "ordered",
    "epochs": 3 * _EVERY,
}

MUTABLE = {
    "batch_size": _REFERENCE,
    "framework": "pytorch",
    "device": "cpu",
    "threads": 1,
    "optimizer": "momentum",
    "optimizer_kwargs": {},
    "schedules": {"lr": _decayed(_RATE)},
    "seed": 0,
}

METRICS = [
    (d5.TestAccuracy(), ">= 93 %"),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), "< 120 s"),
    (d5.Throughput(), None),
]

SIZES = {"smoke": {"dataset_kwargs": {"reach": 2, "flat": True, "limit": 4096}}}


def _candidates() -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for size in _BATCHES:
        more = size / _REFERENCE
        linear, root = _RATE * more, _RATE * sqrt(more)
        lars = {"optimizer": "lars", "optimizer_kwargs": {"weight_decay": 0.0}}
        ramp = _LARS_RATE * sqrt(more)
        rules: dict[str, dict[str, Any]] = {
            "constant": {"schedules": {"lr": _decayed(_RATE)}},
            "square root": {"schedules": {"lr": d5.WarmUp(_decayed(root), start=_RATE, epochs=1)}},
            "linear": {"schedules": {"lr": d5.WarmUp(_decayed(linear), start=_RATE, epochs=1)}},
            "LARS": {**lars, "schedules": {"lr": d5.WarmUp(_decayed(ramp), start=ramp / 10, epochs=1)}},
            "growing": {
                "batch_size": d5.GrowingBatches(start=size, factor=_FACTOR, every=_EVERY),
                "schedules": {"lr": d5.WarmUp(linear, start=_RATE, epochs=1)},
            },
        }
        if size == _REFERENCE:  # there, both are the constant rule
            del rules["square root"], rules["linear"]
        made |= {f"{rule} {size}": {"batch_size": size, **settings} for rule, settings in rules.items()}
    return made


STUDY = _candidates()

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
