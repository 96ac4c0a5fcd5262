"""A run of the MLPerf Storage KV-cache benchmark's locked options: their rules, their trials, their figures."""
