"""How operations get to their tiers, in order and in time."""
