"""A plan that slides: rows loaded ahead of the run, and given back behind it."""
