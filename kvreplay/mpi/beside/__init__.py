"""The process of a rank that speaks MPI, beside the one that replays."""
