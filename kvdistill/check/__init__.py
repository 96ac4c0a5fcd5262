"""Jobs run under fio, and how close they come to their source."""
