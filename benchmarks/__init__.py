"""One file for each thing measured; each prints a table and writes JSON."""
