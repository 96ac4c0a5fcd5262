"""Streams of writes on their way to a drive: write hints on files, write streams of block devices."""
