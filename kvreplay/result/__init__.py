"""What was measured: tables, figures, run.json."""
