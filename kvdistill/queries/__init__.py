"""Queries over our tables: DuckDB, the views that it sees, the library of named queries."""
