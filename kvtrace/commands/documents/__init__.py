"""What the commands show, as documents."""
