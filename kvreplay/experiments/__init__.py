"""A run of the MLPerf Storage KV-cache benchmark's locked options.

Their rules, their trials, their figures.
"""
