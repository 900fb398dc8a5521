"""Sources of problems: local files and folders, the hub, and the schemas of their rows."""
