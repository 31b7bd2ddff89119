"""ResNet-50 on ImageNet, to 75 % top-1 accuracy in 90 epochs.

The hyperparameters are those of Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour,
arXiv:1706.02677, sections 2 and 5.1: momentum 0.9; a learning rate of 0.1 for 256 samples, scaled linearly for other
batch sizes, warmed up from 0.1 over five epochs, and divided by ten after 30, 60 and 80 epochs; a weight decay of
0.0001 in the gradient, except for scales and biases; random resized crops of 224 pixels, mirrored with probability 1/2;
tests on the center crop. The paper reports 76.4 % (section 5.2, an error of 23.60 %).

One difference: crops come from the center square of an image, whose shorter side is scaled to 256 pixels, and not from
the whole image.

The recipe reads ImageNet from `$DEEP5_DATA/imagenet`, as folders of JPEG files or as TFRecord files; it is not
downloaded. The smoke size does not need it: it trains a small network of the same kind on synthetic TFRecord files of
32-pixel images.
"""

import deep5 as d5
from deep5.recipes.penalised_momentum import PenalisedMomentum

# Per channel, for values in [0, 1]; the same as in the data set.
PIXELS = d5.Normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def is_scale_or_bias(name: str) -> bool:
    """Whether a parameter has no weight decay."""
    return name.endswith((".scale", ".bias"))


FIXED = {
    "model": "resnet50",
    "dataset": "imagenet",
    "dataset_kwargs": {"size": 224, "train_size": 256, "pixels": "uint8"},
    "train_sampler": "shuffle",
    "validation_sampler": "ordered",
    # Crop and mirror bytes, which take a quarter of the memory.
    "train_transforms": [d5.RandomResizedCrop(224), d5.Flip(), PIXELS],
    "test_transforms": [PIXELS],
    "epochs": 90,
}

MUTABLE = {
    "batch_size": 256,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": PenalisedMomentum,
    "optimizer_kwargs": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0001},
    "parameter_groups": [d5.ParameterGroup(is_scale_or_bias, weight_decay=0.0)],
    "schedules": {
        "lr": d5.WarmUp(
            d5.LinearScaling(d5.Piecewise(epochs={0: 0.1, 30: 0.01, 60: 0.001, 80: 0.0001}), 256), start=0.1, epochs=5
        )
    },
    "prefetch": 4,
    "seed": 0,
}

METRICS = [
    (d5.TestAccuracy(), ">= 75 %"),
    (d5.TopK(5), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), None),
    (d5.TimeToAccuracy(75), None),
    (d5.Throughput(), None),
    (d5.PeakMemory(), None),
]

SIZES = {
    "smoke": {
        "model_kwargs": {"blocks": (1, 1, 1, 1), "width": 8, "image": 32, "classes": 10},
        "dataset": "synthetic_files",
        "dataset_kwargs": {
            "like": "imagenet_tfrecord",
            "train": 64,
            "test": 32,
            "size": 32,
            "train_size": 37,
            "pixels": "uint8",
        },
        "train_transforms": [d5.RandomResizedCrop(32), d5.Flip(), PIXELS],
        "epochs": 3,
        "batch_size": 16,
        "schedules": {
            "lr": d5.WarmUp(d5.LinearScaling(d5.Piecewise(epochs={0: 0.1, 2: 0.01}), 256), start=0.001, epochs=1)
        },
    }
}

if __name__ == "__main__":
    d5.run_recipe(FIXED, MUTABLE, METRICS) or exit(1)
