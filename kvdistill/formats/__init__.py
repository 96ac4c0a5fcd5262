"""Readers of foreign formats, and writers of iologs and op logs; one family of formats a file."""
