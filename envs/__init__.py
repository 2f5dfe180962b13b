"""Environments behind the protocols of `jaxagent.types`."""
