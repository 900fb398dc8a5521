"""HTTP requests with deadlines and retries."""
