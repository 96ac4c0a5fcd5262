"""From a Profile to jobs, one tool a file."""
