"""Writers and readers, one file format per module."""
