"""kvdistill: turn traces and measurements into jobs that others run and reports people read."""
