"""Selection over several processes or machines."""
