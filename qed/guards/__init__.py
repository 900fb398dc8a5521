"""Guards: what watches over a run."""
