"""The recipe of the runs and the comparison in this folder."""

import time

import deep5 as d5


class Slowly(d5.Event):
    """Leaves time to interrupt the run."""

    def describe(self):
        return {"event": "slowly"}

    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        time.sleep(0.01)


FIXED = {
    "model": "mlp",
    "model_kwargs": {"features": 4, "hidden": 3, "classes": 3},
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 40, "test": 9},
    "epochs": 6,
    "events": (Slowly(),),
}
MUTABLE = {"batch_size": 4, "framework": "reference", "optimizer": "sgd", "seed": 3}
METRICS = [
    (d5.TestAccuracy(), ">= 20 %"),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), "< 600 s"),
]
