"""Exports a notebook as one file that needs no installed astkit."""
