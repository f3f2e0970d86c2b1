"""Which data to train on: compare with a target, forecast decisions, carry them out.

forecast: the question and its answer, a `Forecast`. rows: rows as estimators read them. sides: old
rows and target side by side, and which of them depend on each other. differ: tests of a difference,
and the density ratio. proxies: quick models. decisions: what is judged by them, and which is taken.
policy: `Aim`, which draws rows by a forecast. model_features: rows as the model in training sees
them. auto: by the target, or by trust in labels. explain: what differs, by column or word.
"""

from astkit.aim.forecast import weights as weights
