"""The data of writes: which is made next, for whom, and how long before."""
