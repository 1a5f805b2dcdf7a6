"""Labels for images that nobody has labeled."""
