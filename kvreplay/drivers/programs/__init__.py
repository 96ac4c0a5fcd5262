"""What runs in an engine's own interpreter: it imports that engine, the standard library, and this folder alone."""
