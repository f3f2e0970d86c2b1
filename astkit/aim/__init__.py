"""Which data to train on: compare with a target, forecast decisions, carry them out."""

from astkit.aim.policy import expected_gain as expected_gain
from astkit.aim.policy import weights as weights
