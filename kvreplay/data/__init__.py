"""What writes carry and reads must find."""
