"""Flax Linen modules: init / apply, no I/O."""
