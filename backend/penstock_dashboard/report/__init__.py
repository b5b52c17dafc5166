"""A run as one file that can be sent to somebody: charts, verdicts, receipts, profile, events. It asks no network."""
