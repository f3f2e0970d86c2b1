"""The energy-flow lattice: vectorised, batch-correct flows from embedding to embedding."""
