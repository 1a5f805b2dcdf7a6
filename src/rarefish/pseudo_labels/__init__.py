"""Pseudo-labels: estimated labels of unlabeled images."""
