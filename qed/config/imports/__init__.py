"""Turn the configurations of other systems into qed's: one file of tables for each system."""
