"""The command line: `qed COMMAND`."""
