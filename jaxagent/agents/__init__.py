"""Models, losses and optimisers bound into pure Agent(init, act, update)."""
