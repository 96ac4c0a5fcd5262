"""Requests put on the ring: by compiled code, and by Python where something has to be looked at."""
