"""Picks and labels to and from other tools' forms: tables, data sets, labeling tools. Nothing here needs torch."""
