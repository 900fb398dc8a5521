"""Turn the configurations of other systems into qed's: one file of tables per system, named as `qed config import` does."""
