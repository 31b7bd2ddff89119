
import deep5 as d5

FIXED = {"model": "lenet", "dataset": "digits", "dataset_kwargs": {"limit": 96}, "epochs": 3}
MUTABLE = {"batch_size": 32, "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.05}, "framework": "reference", "seed": 0}
METRICS = [
    (d5.TestAccuracy(), ">= 1 %"),
    (d5.TestLoss(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), "< 600 s"),
    (d5.TimeToAccuracy(1), None),
    (d5.EpochsToAccuracy(1), None),
    (d5.Throughput(), None),
    (d5.StepLatency(), None),
    (d5.PeakMemory(), None),
    (d5.Utilisation(), None),
]
