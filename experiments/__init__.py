"""One file for each thing a user runs."""
