"""Reports and comparisons: a kind of report a file, from its queries to its document."""
