"""The plan of a replay: its options, its trace as rows with due times, its data and buffers.

It imports no other folder of kvreplay.
"""
