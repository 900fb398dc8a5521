"""What a terminal shows: the live line and tables."""
