"""Letters to phonemes."""

import deep5 as d5

FIXED = {
    "model": "attention_seq2seq",
    "model_kwargs": {"source_length": 10, "target_length": 11, "width": 128},
    "dataset": "pronunciations",
    "dataset_kwargs": {"length": 10, "limit": 20_000, "test_limit": 2_000},
    "train_sampler": "shuffle",
    "validation_sampler": "ordered",
    "epochs": 12,
}

MUTABLE = {
    "batch_size": 64,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.002},
    "seed": 0,
}

METRICS = [
    (d5.PhonemeErrorRate(), "<= 18 %"),
    (d5.WordErrorRate(), None),
    (d5.BLEU(), None),
    (d5.ChrF(), None),
    (d5.TestLoss(), None),
    (d5.TestAccuracy(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.Throughput(), None),
]

SIZES = {
    "smoke": {
        "model_kwargs": {"source_length": 6, "target_length": 7, "width": 32},
        "dataset": "synthetic_pronunciations",
        "dataset_kwargs": {"train": 1024, "test": 128, "length": 6},
        "epochs": 3,
        "batch_size": 16,
        "optimizer_kwargs": {"lr": 0.01},
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
