"""Call rewards written for other libraries: one file per library, with shared code in `calling` and `golds`."""
