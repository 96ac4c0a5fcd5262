"""Routers: which node of a fleet serves a request, one router a file."""
