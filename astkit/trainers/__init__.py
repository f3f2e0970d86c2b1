"""Running the epochs: one loop, three kinds of step."""

from astkit.trainers.checkpoint import Checkpoints
from astkit.trainers.config import TrainConfig
from astkit.trainers.dropin import AdaptiveSparseTrainer, SampleAdaptiveSparseTrainer
from astkit.trainers.evaluator import Metric
from astkit.trainers.learner import Learner, choose_device
from astkit.trainers.metrics_file import MetricsFile
from astkit.trainers.progress import Progress
from astkit.trainers.sample_by_sample import SampleStep
from astkit.trainers.state import (
    Budget,
    Event,
    Observer,
    TimeIsUp,
)
from astkit.trainers.steps import DenseStep, GatedStep, Step, StepResult
from astkit.trainers.trainer import Trainer
from astkit.trainers.watch import Watch

__all__ = [
    "AdaptiveSparseTrainer",
    "Budget",
    "Checkpoints",
    "DenseStep",
    "Event",
    "GatedStep",
    "Learner",
    "Metric",
    "MetricsFile",
    "Observer",
    "Progress",
    "SampleAdaptiveSparseTrainer",
    "SampleStep",
    "Step",
    "StepResult",
    "TimeIsUp",
    "TrainConfig",
    "Trainer",
    "Watch",
    "choose_device",
]
