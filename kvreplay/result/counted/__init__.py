"""What is counted of a run as its rows come, in memory that does not grow with them."""
