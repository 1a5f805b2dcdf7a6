"""`python -m rarefish`, the same as `rarefish`."""

from rarefish.cli import main

main()
