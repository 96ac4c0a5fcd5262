"""What the ranks left put together: counts added up, times pooled, one verdict."""
