"""Which data to train on: compare with a target, forecast decisions, carry them out.

explain: what differs, by column. forecast: which data to train on, of tables. decisions: the
choices that it judges. policy: `Aim`, which draws rows by the target; auto: by the target or by
trust in labels. For these, features: rows as estimators read them. model_features: rows as the
model in training sees them. pair: training rows and target side by side. blocks: neighbours that
depend on each other. ratio: tests of a difference, and weights. estimators and proxies: what is
fitted. gains: what weights are expected to gain. plans: decisions carried out on joined data.
"""

from astkit.aim.policy import expected_gain as expected_gain
from astkit.aim.policy import weights as weights
