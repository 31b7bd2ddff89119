"""Object detection: boxes, their matching with anchors, targets of detectors, and non-maximum suppression."""

from deep5.training.detection.boxes import decoded as decoded
from deep5.training.detection.boxes import encoded as encoded
from deep5.training.detection.boxes import intersection_over_union as intersection_over_union
from deep5.training.detection.matching import matched as matched
from deep5.training.detection.nms import suppressed as suppressed
from deep5.training.detection.targets import DrawCenters as DrawCenters
from deep5.training.detection.targets import MatchAnchors as MatchAnchors
