"""Energy-flow lattice: vectorised flows from embedding to embedding, independent per sample."""
