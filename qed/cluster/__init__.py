"""Start and use many processes on one machine or several: Ray, and the launch of ranks."""
