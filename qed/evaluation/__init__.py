"""Evaluation of graded answers: estimators, intervals, summaries and paired comparisons. Needs no torch."""
