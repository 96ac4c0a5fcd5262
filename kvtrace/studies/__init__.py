"""A study.

Many configurations, each simulated once, on all cores, compared in one table and one answer.
"""
