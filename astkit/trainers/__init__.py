"""Training: the `Trainer` and its parts.

trainer: the loop. step: what a step did. batches: training batches in the order of a plan.
optimisation: forward and backward pass, optimizer step. graphs: steps recorded as CUDA graphs.
evaluation: metrics, the data evaluated after each epoch, early stopping. first_batch: checks before
the first step. refusals: sentences about what cannot be trained. config: `TrainConfig`, `Budget`,
learning rates, the time budget of a process. history: records, and their way to observers.
steering: settings changed in a run. checkpoint: files of a run's state. fingerprint: whether it is
the same run. progress: bars of runs. sample_by_sample: single rows, as the original.
"""

from astkit.trainers.checkpoint import Checkpoints as Checkpoints
from astkit.trainers.config import Budget as Budget
from astkit.trainers.config import TimeIsUp as TimeIsUp
from astkit.trainers.config import TrainConfig as TrainConfig
from astkit.trainers.config import choose_device as choose_device
from astkit.trainers.config import fast_rules as fast_rules
from astkit.trainers.evaluation import Metric as Metric
from astkit.trainers.history import Observer as Observer
from astkit.trainers.sample_by_sample import SampleBySampleTrainer as SampleBySampleTrainer
from astkit.trainers.steering import Event as Event
from astkit.trainers.step import StepResult as StepResult
from astkit.trainers.trainer import Trainer as Trainer
