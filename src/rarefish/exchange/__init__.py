"""Export and import of picks and labels in the formats of other tools. Nothing here needs torch."""
