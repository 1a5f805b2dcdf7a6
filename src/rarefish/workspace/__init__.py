"""A folder for real labeling work: images, rounds, labels and models on disk. Nothing here needs torch."""
