"""Which data to train on: compare with a target, forecast decisions, carry them out."""
