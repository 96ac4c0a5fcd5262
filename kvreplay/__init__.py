"""kvreplay: replay a kvtrace trace on real tiers and record what each operation took."""
