"""Writers of jobs: pure functions from a Profile to text, one kind of job a file."""
