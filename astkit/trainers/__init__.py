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

from astkit.trainers.checkpoint import Checkpoints as Checkpoints
from astkit.trainers.config import TrainConfig as TrainConfig
from astkit.trainers.dropin import AdaptiveSparseTrainer as AdaptiveSparseTrainer
from astkit.trainers.dropin import SampleAdaptiveSparseTrainer as SampleAdaptiveSparseTrainer
from astkit.trainers.evaluator import Metric as Metric
from astkit.trainers.learner import Learner as Learner
from astkit.trainers.learner import choose_device as choose_device
from astkit.trainers.metrics_file import MetricsFile as MetricsFile
from astkit.trainers.progress import Progress as Progress
from astkit.trainers.sample_by_sample import SampleStep as SampleStep
from astkit.trainers.state import Budget as Budget
from astkit.trainers.state import Event as Event
from astkit.trainers.state import Observer as Observer
from astkit.trainers.state import TimeIsUp as TimeIsUp
from astkit.trainers.steps import DenseStep as DenseStep
from astkit.trainers.steps import GatedStep as GatedStep
from astkit.trainers.steps import Step as Step
from astkit.trainers.steps import StepResult as StepResult
from astkit.trainers.trainer import Trainer as Trainer
from astkit.trainers.watch import Watch as Watch
