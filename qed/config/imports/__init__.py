"""Converts configurations of other systems into qed's, with one file of tables per system."""
