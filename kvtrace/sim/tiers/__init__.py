"""The tiers: what is live where, and the rows that this causes.

Objects live in dense slots; records.py says what is kept of them, policies which object a tier gives up.
"""
