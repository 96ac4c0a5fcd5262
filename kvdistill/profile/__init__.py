"""The frozen Profile of a source, and how it is distilled."""
