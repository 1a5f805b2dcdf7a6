"""Networks, loading, preprocessing and layers."""
