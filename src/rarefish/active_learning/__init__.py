"""The loop: select, label, train, evaluate."""
