"""Data sets: reading, listing and holding images."""
