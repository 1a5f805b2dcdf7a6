"""Training loops and their settings."""
