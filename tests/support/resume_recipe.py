"""A recipe to be killed: dropout, batch normalization, an average for evaluation, a smaller last batch."""

import time

import deep5 as d5


def network(*, seed=0):
    build = d5.NetworkBuilder("dropped", seed=seed)
    x, label = build.input("input", ("N", 2, 6, 6)), build.input("label", ("N",), "int64")
    x = build.op("Conv", x, build.parameter("conv", (4, 2, 3, 3)), pads=(1, 1, 1, 1))
    zeros, ones = d5.networks.zeros, d5.networks.ones
    factors = (build.parameter("scale", (4,), ones), build.parameter("shift", (4,), zeros))
    statistics = (build.parameter("mean", (4,), zeros), build.parameter("variance", (4,), ones))
    x = build.op("Relu", build.op("BatchNormalization", x, *factors, *statistics, epsilon=1e-5))
    x = build.op("Dropout", build.op("Flatten", x, axis=1), build.scalar(0.5))
    logits = build.op("Gemm", x, build.parameter("dense", (5, 4 * 36)), transB=1)
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean")
    return build.network({"logits": logits, "loss": loss})


class Slowly(d5.Event):
    """Slows the run down, so that the test can kill it."""

    def describe(self):
        return {"event": "slowly"}

    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        time.sleep(0.01)


FIXED = {
    "model": network,
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (2, 6, 6), "classes": 5, "train": 110, "test": 30},
    "epochs": 12,
    "events": (Slowly(),),
}
MUTABLE = {"batch_size": 8, "framework": "reference", "optimizer": "accelegrad", "seed": 3}
METRICS = [(d5.TestAccuracy(), None), (d5.TrainingLoss(), None), (d5.WallClockTime(), None)]
