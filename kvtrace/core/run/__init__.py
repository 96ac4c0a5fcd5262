"""A run's folder.

The names of its files, and run.json as one struct that its writer and all its readers share.
"""
