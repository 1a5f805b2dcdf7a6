"""Data sets to try things on."""
