"""The household games of ALFWorld: engine, generator, experts, formats, trained planners."""
