"""More of the same traffic: copies of the requests of a file over each other."""
