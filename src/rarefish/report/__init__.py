"""Charts, statistics and report pages made from records."""
