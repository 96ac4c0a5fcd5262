"""From a Profile to jobs: one kind of job a file, each a pure function from the Profile to text."""
