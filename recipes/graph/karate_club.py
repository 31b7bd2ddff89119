"""A graph convolutional network on Zachary's karate club, to 90 % test accuracy from one label per class.

The two members with a label are the instructor and the president; the network infers which club the 32 others joined
from 78 friendships. The features only identify a member, so without edges no classifier is better than 50 %, the share
of the larger class. Learning rate, hidden size and dropout are those of the paper.
"""

import deep5 as d5

FIXED = {
    "model": "gcn",
    "model_kwargs": {"nodes": 34, "features": 34, "hidden": 16, "classes": 2, "dropout": 0.5},
    "dataset": "karate_club",
    "train_sampler": "ordered",
    "validation_sampler": "ordered",
    "epochs": 100,
}

MUTABLE = {
    "batch_size": 1,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.01},
    "seed": 0,
}

METRICS = [
    (d5.TestAccuracy(), ">= 90 %"),
    (d5.F1(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), "< 60 s"),
    (d5.StepLatency(), None),
    (d5.PeakMemory(), None),
]

SIZES = {"smoke": {"epochs": 5}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
