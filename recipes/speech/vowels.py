"""Vowels from log-mel features by connectionist temporal classification, to at most 20 % wrong labels.

Sequences of 3 to 8 vowels, synthesized by the rule of `spoken_vowels`. Vowels of the right number, drawn at random,
have an error rate of about 80 %, and no vowels one of 100 %. Minutes on two cores.
"""

import deep5 as d5

FIXED = {
    "model": "deep_speech",
    "model_kwargs": {"features": 40, "classes": 11, "most": 8, "stride": 3, "width": 64, "layers": 2},
    "dataset": "spoken_vowels",
    "dataset_kwargs": {"train": 3000, "test": 200, "most": 8},
    "train_sampler": "bucket",
    "validation_sampler": "ordered",
    "epochs": 8,
}

MUTABLE = {
    "batch_size": 32,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.005},
    "schedules": {"lr": d5.Cosine(0.005)},
    "seed": 0,
}

METRICS = [
    (d5.LabelErrorRate(), "<= 20 %"),
    (d5.TestLoss(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.Throughput(), None),
]

SIZES = {
    "smoke": {
        "model_kwargs": {"features": 20, "classes": 11, "most": 3, "channels": 16, "width": 16, "layers": 1},
        "dataset_kwargs": {"train": 128, "test": 32, "fewest": 1, "most": 3, "bands": 20},
        "epochs": 3,
        "batch_size": 16,
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
