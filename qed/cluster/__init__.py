"""Start the processes of a run and watch them."""
