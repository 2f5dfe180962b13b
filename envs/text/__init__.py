"""The household text world: an engine for ALFWorld games, its generator, experts and panels."""
