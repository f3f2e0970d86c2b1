"""Training: the `Trainer`, its loop and its parts.

trainer: the `Trainer`. parts: its constructor, which builds all parts below. loop: the loop.
dropin: trainers with the original's signature.
steps: dense and gated training steps. sample_by_sample: the step that processes single rows.
learner: model, criterion, optimizer, precision, micro-batches. updates: accumulation, clipping.
config: `TrainConfig`. autotune: resolves "auto" settings.
compiling: torch.compile. memory_saving: activation checkpointing, attention kernels.
batch_order: order of batches, plans of policies. policy_feedback: calls ``Policy.observe``.
costs: FLOPs per sample. evaluator: validation metrics.
state: `Budget`, `History`, schedules, steering, observers. progress: progress bar.
metrics_file: JSONL metrics. watch: records scores and classes per batch.
resume: state of a run. checkpoint: checkpoint folder. state_file: checkpoint file format.
"""

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
