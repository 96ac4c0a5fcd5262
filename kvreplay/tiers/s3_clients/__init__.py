"""Client libraries of S3, each behind one protocol, and the requests that a replay sends by one."""
