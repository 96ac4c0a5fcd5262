"""The presets: one TOML file each, what their knobs are, and how they are read and checked."""
