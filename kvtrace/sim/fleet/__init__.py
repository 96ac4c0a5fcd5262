"""A fleet: nodes that serve side by side, each with tiers of its own, and tiers that they share."""
