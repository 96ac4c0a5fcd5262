"""The simulation: requests over tiers in virtual time."""
