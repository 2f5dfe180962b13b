"""A language model of this package behind an OpenAI-compatible endpoint."""
