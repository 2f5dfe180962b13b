"""A decoder of the Llama family: model, cache, files, adapters, generation."""
