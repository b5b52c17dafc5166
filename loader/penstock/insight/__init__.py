"""The one judge: what the numbers of a loader mean. Pure: no torch, no IO."""
