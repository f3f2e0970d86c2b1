"""Exports a notebook as one self-contained file that does not require astkit."""
