"""The simulation: requests over tiers in simulated time."""
