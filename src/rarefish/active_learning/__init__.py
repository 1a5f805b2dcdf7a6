"""The active learning loop: select, label, train, evaluate."""
