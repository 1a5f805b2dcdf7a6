"""A workspace: a folder with the index of images, rounds, labels and trained models of one labeling project."""
