"""Parts of the grading benchmark: the worker that grades, the process around it, the cases and the printed table."""
