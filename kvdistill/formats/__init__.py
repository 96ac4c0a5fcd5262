"""Foreign formats, read into our tables and, for iologs and op logs, written: a family of formats a file."""
