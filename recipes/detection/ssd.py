"""A single-shot detector finds handwritten digits on canvases, to 90 % mean average precision at an overlap of 0.5.

A small SSD (Liu et al., ECCV 2016, arXiv:1512.02325) with the focal loss of Lin et al. (ICCV 2017, arXiv:1708.02002)
learns from canvases of 64 x 64 pixels with one to four of the digits that ship with deep5 at random places and sizes.
No digit of the test canvases occurs in a training canvas. The baseline, true boxes with classes
guessed at random, has 12 %.
"""

import deep5 as d5

FIXED = {
    "model": "ssd",
    "model_kwargs": {"image": 64, "classes": 10},
    "dataset": "digit_canvases",
    "dataset_kwargs": {"size": 64, "train": 1500, "test": 300},
    "train_sampler": "shuffle",
    "train_transforms": [d5.MatchAnchors(classes=10)],
    "test_transforms": [d5.MatchAnchors(classes=10)],
    "validation_sampler": "ordered",
    "epochs": 15,
}

MUTABLE = {
    "batch_size": 32,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.005},
    "schedules": {"lr": d5.OneCycle(0.001, 0.005, 0.00005, anneal="cos", rise=0.25)},
    "seed": 0,
}

METRICS = [
    (d5.MeanAveragePrecision(iou=0.5), ">= 90 %"),
    (d5.TestLoss(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.Throughput(), None),
    (d5.StepLatency(), None),
]

SIZES = {"smoke": {"epochs": 1, "dataset_kwargs": {"train": 64, "test": 16}, "batch_size": 16}}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
