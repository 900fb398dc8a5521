"""The run folder, the only channel between training, evaluation, report and viewer."""
