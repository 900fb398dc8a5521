"""Parts of the interval benchmark: simulated evaluations, intervals and tests on them, and the printed table."""
