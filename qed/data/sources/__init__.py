"""Where problems come from: local files and folders, the hub, and what their columns mean."""
