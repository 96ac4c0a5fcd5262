"""Where requests come from: one source of requests a file."""
