"""Parts of the viewer benchmark."""
