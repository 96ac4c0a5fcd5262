"""Real engines on the user's storage: started, watched, recorded, and left as a run."""
