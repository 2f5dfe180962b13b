"""Guidance without waiting: caches, a router over sources, stand-ins, and calls that may fail."""
