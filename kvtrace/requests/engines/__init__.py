"""What serving engines log of their own requests, one format a file; a line each in `requests/registry.py`."""
