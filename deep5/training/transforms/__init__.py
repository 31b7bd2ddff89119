"""Augmentation: transforms that a sampler applies to each batch, functions of (seed, epoch, sample)."""

from deep5.training.transforms.crop import CenterCrop as CenterCrop
from deep5.training.transforms.crop import RandomCrop as RandomCrop
from deep5.training.transforms.cutout import Cutout as Cutout
from deep5.training.transforms.fit import fitted as fitted
from deep5.training.transforms.flip import Flip as Flip
from deep5.training.transforms.normalise import Cast as Cast
from deep5.training.transforms.normalise import Normalise as Normalise
from deep5.training.transforms.resize import RandomResizedCrop as RandomResizedCrop
from deep5.training.transforms.resize import Resize as Resize
from deep5.training.transforms.transform import Transform as Transform
