"""`python -m rarefish`, the same as `rarefish`."""

from rarefish.cli.main import main

main()
