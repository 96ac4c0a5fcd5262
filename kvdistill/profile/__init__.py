"""The frozen Profile and how it is distilled."""
