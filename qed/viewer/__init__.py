"""The viewer: a web server over run folders, which reads them and changes nothing."""
