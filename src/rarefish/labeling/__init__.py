"""A server and pages for labeling in the browser: one person or several, on this machine or beside it. No torch."""
