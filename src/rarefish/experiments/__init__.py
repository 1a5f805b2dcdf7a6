"""Experiments over methods × seeds × biases × validation sizes."""
