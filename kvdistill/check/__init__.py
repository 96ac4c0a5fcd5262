"""Jobs run under fio, or read back, and how close they come to their source."""
