"""Agentic reinforcement learning in JAX: a planner guides, a learned policy acts."""
