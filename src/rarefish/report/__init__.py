"""Charts and pages from records. Nothing here needs torch."""
