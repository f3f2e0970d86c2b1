"""A notebook as one file that needs no installed astkit: closure, cells, guard, script."""
