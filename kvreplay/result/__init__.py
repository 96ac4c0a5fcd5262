"""What was measured: tables, figures, run.json, the verdict. Imports plan, tiers and engine."""
