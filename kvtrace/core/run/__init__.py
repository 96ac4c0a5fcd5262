"""The files in a run's folder: their names, and run.json as one struct for its writer and its
readers.
"""
