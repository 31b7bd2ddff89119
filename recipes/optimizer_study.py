"""LeNet on the handwritten digits with every optimizer: how fast each learns, by epochs and by time.

`deep5 run optimizer_study` trains with one of them, Adam. `deep5 study optimizer_study` trains with all, each with five
seeds, and plots test accuracy over epochs and training loss over time. No download.

Each optimizer uses the learning rate among 0.0003, 0.001, 0.003, 0.01 … with the lowest training loss in the sixth
epoch, averaged over three seeds that the study does not use. Nothing else was tuned, and nothing by test accuracy. Each
uses its default weight decay, except LARS, which has none.
"""

import deep5 as d5

FIXED = {
    "model": "lenet",
    "model_kwargs": {"activation": "tanh", "pooling": "average"},
    "dataset": "digits",
    "dataset_kwargs": {"size": 28, "test_share": 0.2, "split_seed": 0},
    "train_sampler": "shuffle",
    "validation_sampler": "ordered",
    "batch_size": 64,
    "epochs": 20,
}

MUTABLE = {
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.01},
    "seed": 0,
}

METRICS = [
    (d5.TestAccuracy(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.EpochsToAccuracy(95), None),
    (d5.TimeToAccuracy(95), None),
    (d5.GeneralisationGap(), None),
]

SIZES = {"smoke": {"epochs": 2, "dataset_kwargs": {"limit": 320}}}


def _with(optimizer: str, **arguments: float) -> dict[str, object]:
    return {"optimizer": optimizer, "optimizer_kwargs": arguments}


STUDY = {
    "SGD": _with("sgd", lr=0.1),
    "momentum": _with("momentum", lr=0.1),
    "Nesterov": _with("nesterov", lr=0.1),
    "AdaGrad": _with("adagrad", lr=0.01),
    "AdaDelta": _with("adadelta", lr=1.0),
    "RMSProp": _with("rmsprop", lr=0.003),
    "Adam": _with("adam", lr=0.01),
    "AdamW": _with("adamw", lr=0.01),
    "AMSGrad": _with("amsgrad", lr=0.001),
    "Nadam": _with("nadam", lr=0.01),
    "LARS": _with("lars", lr=1.0, weight_decay=0.0),
    "LAMB": _with("lamb", lr=0.01),
    "Lion": _with("lion", lr=0.003),
    "averaged SGD": _with("averaged_sgd", lr=0.1),
    "AcceleGrad": _with("accelegrad", lr=1.0),
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
