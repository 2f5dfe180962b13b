"""Sub-goal plans and who makes them."""
