"""How operations get to their tiers, in order and in time.

The native engine, laid out, started and watched. Imports plan and tiers.
"""
