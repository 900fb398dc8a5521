"""The viewer: a read-only web server for run folders."""
