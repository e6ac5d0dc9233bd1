"""A night batch: support tickets in a CSV are looked up, classified, and written back, one answer for each."""
